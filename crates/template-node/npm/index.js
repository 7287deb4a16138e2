// Hands on the module `@sublet/sublet` of a worker, by which functions use Sublet.
//
// In a worker this name is the worker's own module, which this file hands on to modules of ECMAScript. In any other
// process the name is this file, which then refuses to be loaded.
'use strict';
const own = require('@sublet/sublet');
if (own === module.exports) {
  throw new Error('@sublet/sublet is available in functions that Sublet executes, and not in other programs');
}
exports.json = own.json;
exports.xpu = own.xpu;
exports.Channel = own.Channel;
exports.channel = own.channel;
exports.send = own.send;
exports.receive = own.receive;
exports.instance = own.instance;
exports.instances = own.instances;
