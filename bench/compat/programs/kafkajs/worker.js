// Consume, transform, produce in transactions: `node worker.js --do work|read --bootstrap …`.
// Every fifth transaction is aborted once and done again. It works until it is killed.
const { open, options, connect, pause, fail } = require("./diary");

const ABORT_EACH = 5;
const PAUSE_MS = 10; // in each state of a transaction, so that a kill meets all of them
const MESSAGES_AT_ONCE = 20;
const settings = options();

async function work() {
  const { bootstrap, group, input, output, id, diary } = settings;
  const write = open(diary);
  const kafka = connect(bootstrap);
  const producer = kafka.producer({
    transactionalId: id,
    idempotent: true,
    maxInFlightRequests: 1,
    transactionTimeout: 30000,
  });
  const consumer = kafka.consumer({
    groupId: group,
    sessionTimeout: 6000,
    rebalanceTimeout: 6000,
    heartbeatInterval: 500,
    maxWaitTimeInMs: 200,
  });
  let number = 1;

  async function send(partition, messages) {
    const transaction = await producer.transaction();
    const results = messages.map(({ value }) => ({ partition, value: `done:${value}` }));
    await transaction.send({ topic: output, messages: results, acks: -1 });
    write("sent", messages.length);
    await pause(PAUSE_MS);
    const offset = (BigInt(messages[messages.length - 1].offset) + 1n).toString();
    await transaction.sendOffsets({
      consumerGroupId: group,
      topics: [{ topic: input, partitions: [{ partition, offset }] }],
    });
    write("offsets", messages.length);
    await pause(PAUSE_MS);
    return transaction;
  }

  async function handle(partition, messages) {
    if (number % ABORT_EACH === 0) {
      await (await send(partition, messages)).abort();
      write("aborted", number);
      await pause(PAUSE_MS);
    }
    await (await send(partition, messages)).commit();
    write("committed", number);
    number += 1;
  }

  consumer.on(consumer.events.CRASH, ({ payload }) => fail(payload.error));
  await producer.connect(); // asks for the producer id, which ends what a predecessor left open
  await consumer.connect();
  await consumer.subscribe({ topic: input, fromBeginning: true });
  await consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch, resolveOffset, heartbeat, isRunning, isStale }) => {
      for (let at = 0; at < batch.messages.length; at += MESSAGES_AT_ONCE) {
        if (!isRunning() || isStale()) return;
        const messages = batch.messages.slice(at, at + MESSAGES_AT_ONCE);
        await handle(batch.partition, messages);
        resolveOffset(messages[messages.length - 1].offset);
        await heartbeat();
      }
    },
  });
}

// Print every value until each partition has said "end".
async function read() {
  const { bootstrap, topic, isolation } = settings;
  const kafka = connect(bootstrap);
  const admin = kafka.admin();
  await admin.connect();
  const left = new Set((await admin.fetchTopicOffsets(topic)).map(({ partition }) => partition));
  await admin.disconnect();
  const consumer = kafka.consumer({
    groupId: `reader-${topic}-${isolation}`,
    readUncommitted: isolation === "uncommitted",
    maxWaitTimeInMs: 200,
  });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error));
    consumer.run({
      eachMessage: async ({ partition, message }) => {
        if (message.value.toString() !== "end") process.stdout.write(`${message.value}\n`);
        else left.delete(partition);
        if (left.size === 0) resolve();
      },
    });
  });
  await consumer.disconnect();
}

({ work, read })[settings.do]().catch(fail);
