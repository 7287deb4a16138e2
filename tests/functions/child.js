// A program that functions of neighbours.js spawn: it says in the FIFO of its first argument what there is of it, and
// waits for its end.
'use strict';
const { xpu } = require('@sublet/sublet');

async function main() {
  const [fifo, ...args] = process.argv.slice(2);
  const to = await xpu.connect(fifo, { timeoutMs: 5000 });
  const names = Object.keys(process.env).filter((name) => name === 'COLOUR' || name.startsWith('NODE'));
  await to.write(`${xpu.pid()} ${JSON.stringify(args)} ${process.env.COLOUR} ${names}`, { timeoutMs: 5000 });
  setInterval(() => {}, 1000);
}

main();
