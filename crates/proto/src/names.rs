//! Names of packages, functions, secrets, lent folders and nodes.

/// Longest name, in bytes.
pub const MAX_NAME_BYTES: usize = 64;

/// Longest name of a node, in bytes.
pub const MAX_NODE_NAME_BYTES: usize = 64;

/// Whether packages and functions may have this name.
pub fn is_name(name: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    name.len() <= MAX_NAME_BYTES
        && name.bytes().next().is_some_and(word)
        && name.bytes().all(|byte| word(byte) || matches!(byte, b'.' | b'-'))
}

/// Tells whether a node may have this name.
pub fn is_node_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".:_-@".contains(&byte);
    (1..=MAX_NODE_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_plain)
}

/// Describes the form of a name.
pub(crate) fn name_form() -> String {
    format!("1 to {MAX_NAME_BYTES} of A-Z a-z 0-9 _ . - and no . or - in front")
}
