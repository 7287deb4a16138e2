//! A function in Rust, as native code and for every processor as WebAssembly:
//!
//! ```sh
//! cargo build --release -p sublet-example-functions --example reverse --target wasm32-unknown-unknown
//! sublet deploy target/wasm32-unknown-unknown/release/examples/reverse.wasm
//! printf 'drei Äpfel' | sublet call reverse/reverse --input - --output -
//! ```

/// Turns text around, letter by letter. Input that is not UTF-8 is an error of the call.
fn reverse(text: &str) -> String {
    text.chars().rev().collect()
}

sublet_function::export!(reverse);
