//! The functions that hello calls, in Rust. The same functions are in hello.c, hello.f90, go/hello.go and nodejs/hello.js.
//!
//! ```sh
//! cargo build --release -p sublet-example-functions
//! ```

/// Turns text into capitals.
fn shout(text: &str) -> String {
    text.to_uppercase()
}

/// Greets the name in its input, and fails without one.
fn greet(name: &str) -> Result<String, &'static str> {
    if name.is_empty() {
        return Err("the name is empty");
    }
    Ok(format!("Hello, {name}!"))
}

sublet_function::export!(shout, greet);
