// Becomes a worker in a Node.js of an image, which has just been started.
'use strict';
const fs = require('fs');
const path = require('path');

const library = { exports: {} };
process.dlopen(library, '/program');
const { sublet_template: worker } = new Function('adapter', 'require', library.exports.WORKER)(library.exports, require);
worker.endAtOnce();

// Modules of the image are found from the package's folder, `/package`, which Node.js leaves for `/node_modules`: this becomes a
// link to the first folder of modules at or above the image's working folder.
let folder = process.cwd();
while (path.dirname(folder) !== folder && !fs.existsSync(path.join(folder, 'node_modules'))) folder = path.dirname(folder);
if (path.dirname(folder) !== folder) {
  try {
    fs.symlinkSync(path.join(folder, 'node_modules'), '/node_modules');
  } catch {
    // The image has a folder of modules there.
  }
}
process.execArgv = [];
// Only this code has the right to import modules of ECMAScript.
worker.work((file) => import(file));
