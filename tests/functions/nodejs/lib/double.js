// A module of the package that index.js requires.
exports.double = (number) => 2 * number;
