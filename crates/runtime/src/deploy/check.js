// Checks a package of Node.js without executing it: its own modules can be parsed.
//
// Arguments: the package's folder, and files in it. Prints the first fault, or nothing.
'use strict';
const { spawnSync } = require('child_process');
const fs = require('fs');
const path = require('path');
const vm = require('vm');

const [folder, ...files] = process.argv.slice(1);
const WRAPPER = ['exports', 'require', 'module', '__filename', '__dirname'];

// Whether the nearest package.json says that files .js are modules of ECMAScript.
function isModule(file) {
  for (let at = path.dirname(file); ; at = path.dirname(at)) {
    try {
      return JSON.parse(fs.readFileSync(path.join(folder, at, 'package.json'), 'utf8')).type === 'module';
    } catch {
      if (at === '.') return false;
    }
  }
}

// The error of parsing a text, if there is one.
function faultOf(parse) {
  try {
    parse();
    return undefined;
  } catch (error) {
    return error;
  }
}

// The line with which a report of a syntax error begins, as `FILE:LINE`. The errors of modules of ECMAScript have none.
const lineOf = (report) => /^.*:(\d+)\n/.exec(String(report))?.[1];

for (const file of files) {
  const source = fs.readFileSync(path.join(folder, file), 'utf8').replace(/^#!.*/, '');
  const script = () => vm.compileFunction(source, WRAPPER, { filename: file });
  const module = () => new vm.SourceTextModule(source, { identifier: file });
  let fault;
  if (file.endsWith('.mjs') || (file.endsWith('.js') && isModule(file))) {
    fault = faultOf(module);
  } else {
    fault = faultOf(script);
    // Later versions take a file that is one of these for a module of ECMAScript.
    if (fault && file.endsWith('.js') && !faultOf(module)) fault = undefined;
  }
  if (fault) {
    const line = lineOf(fault.stack) ?? lineOf(spawnSync(process.execPath, ['--check', path.join(folder, file)]).stderr);
    console.log(`${file}${line ? `:${line}` : ''}: ${fault.message} (Node.js ${process.versions.node})`);
    break;
  }
}
