// The functions that hello calls, in JavaScript. The same functions are in hello.c, hello.rs, hello.f90 and go/hello.go.
// With `sublet up --node node` running, any of the clients calls them:
//
//     python ../../python/hello.py .
'use strict';

// Turns text into capitals. Input and output are bytes; text that is returned is encoded as UTF-8.
exports.shout = (input) => input.toString().toUpperCase();

// Greets the name in its input, and fails without one.
exports.greet = (input) => {
  if (input.length === 0) throw new Error('the name is empty');
  return `Hello, ${input}!`;
};
