// Reports on this interpreter, of any version, in one line: see `NodeReport`.
'use strict';

// Loads the library of workers, as a worker does. Returns why that fails, if it does.
function load() {
  try {
    process.dlopen({ exports: {} }, '/program');
  } catch (error) {
    return String(error && error.message).replace(/\s+/g, ' ');
  }
  return '';
}

// The version of glibc, which a Node.js for another C library does not have.
function libc() {
  try {
    return process.report.getReport().header.glibcVersionRuntime || '';
  } catch (error) {
    return '';
  }
}

const version = process.versions.node || '';
const implementation = process.versions.bun ? 'bun' : process.release && process.release.name || '';
const canLoad = implementation === 'node' && parseInt(version, 10) >= 20;
const fields = [version, implementation, canLoad ? libc() : '', process.execPath || '', canLoad && libc() ? load() : ''];
process.stdout.write('\nsublet-node\t' + fields.join('\t') + '\n');
