// kafkajs against one node: `node client.js create|produce|group BOOTSTRAP TOPIC [CODEC|COUNT]`.
// Lines to produce come on standard input; what is read goes to standard output, one value a line.
const { CompressionCodecs, CompressionTypes, Kafka, logLevel } = require("kafkajs");
const snappy = require("kafkajs-snappy");
const lz4 = require("lz4js");
const zstd = require("@bokuweb/zstd-wasm");

CompressionCodecs[CompressionTypes.Snappy] = snappy;
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async (encoder) => Buffer.from(lz4.compress(encoder.buffer)),
  decompress: async (data) => Buffer.from(lz4.decompress(data)),
});
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => Buffer.from(zstd.compress(encoder.buffer, 3)),
  decompress: async (data) => Buffer.from(zstd.decompress(data)),
});
const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
};

const [verb, bootstrap, topic, extra] = process.argv.slice(2);
const kafka = new Kafka({ brokers: bootstrap.split(","), clientId: "compat", logLevel: logLevel.ERROR, retry: { retries: 3 } });

async function create() {
  const admin = kafka.admin();
  await admin.connect();
  const isNew = await admin.createTopics({ topics: [{ topic, numPartitions: 1, replicationFactor: 1 }] });
  await admin.disconnect();
  if (!isNew) throw new Error(`${topic} existed already`);
}

async function produce() {
  const lines = require("fs").readFileSync(0, "utf8").split("\n").filter(Boolean);
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  for (let at = 0; at < lines.length; at += 100) {
    const messages = lines.slice(at, at + 100).map((value) => ({ value, partition: 0, headers: { from: "kafkajs" } }));
    await producer.send({ topic, messages, acks: -1, compression: CODECS[extra] });
  }
  await producer.disconnect();
}

async function group() {
  const consumer = kafka.consumer({ groupId: `compat-${topic}`, sessionTimeout: 10000 });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  let left = Number(extra);
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error));
    consumer.run({
      eachMessage: async ({ message }) => {
        if (left > 0) process.stdout.write(`${message.value}\n`);
        left -= 1;
        if (left === 0) resolve();
      },
    });
  });
  await consumer.disconnect();
}

zstd
  .init()
  .then(() => ({ create, produce, group })[verb]())
  .catch((error) => {
    console.error(error.stack || error);
    process.exit(1);
  });
