// One line for each thing that happens, stamped with the machine's monotonic clock; lines survive a kill.
const fs = require("fs");
const { Kafka, logLevel } = require("kafkajs");

const stamp = () => (Number(process.hrtime.bigint()) / 1e9).toFixed(6);

function open(path) {
  const file = fs.openSync(path, "a");
  return (...words) => fs.writeSync(file, `${[stamp(), ...words].join(" ")}\n`);
}

// The options of a program: --name value, again and again.
function options(list = process.argv.slice(2)) {
  const found = {};
  for (let at = 0; at + 1 < list.length; at += 2) found[list[at].slice(2)] = list[at + 1];
  return found;
}

const connect = (bootstrap) =>
  new Kafka({
    brokers: bootstrap.split(","),
    clientId: "compat",
    logLevel: logLevel.ERROR,
    retry: { initialRetryTime: 100, maxRetryTime: 500, retries: 30 },
  });

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

function fail(error) {
  console.error(error.stack || error);
  process.exit(1);
}

module.exports = { open, options, connect, pause, fail };
