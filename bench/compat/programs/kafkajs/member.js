// One member of a consumer group: reads, writes down what it read, and only then commits. SIGTERM makes it leave.
const { PartitionAssigners } = require("kafkajs");
const { open, options, connect, fail } = require("./diary");

const { bootstrap, group, topic, diary } = options();
const write = open(diary);

async function main() {
  const consumer = connect(bootstrap).consumer({
    groupId: group,
    sessionTimeout: 6000,
    rebalanceTimeout: 6000,
    heartbeatInterval: 500,
    maxWaitTimeInMs: 200,
    partitionAssigners: [PartitionAssigners.roundRobin],
  });
  let held = [];
  const revoke = () => {
    if (held.length) write("revoked", ...held);
    held = [];
  };
  consumer.on(consumer.events.REBALANCING, revoke);
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    revoke();
    held = payload.memberAssignment[topic] || [];
    write("assigned", ...held);
  });
  consumer.on(consumer.events.CRASH, ({ payload }) => {
    if (!payload.restart) fail(payload.error);
  });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  process.on("SIGTERM", () => consumer.disconnect().then(() => process.exit(0), fail));
  await consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch, resolveOffset, heartbeat, isRunning, isStale }) => {
      if (!isRunning() || isStale()) return;
      for (const message of batch.messages) {
        write("got", batch.partition, message.offset, message.value);
        resolveOffset(message.offset);
      }
      const offset = (BigInt(batch.lastOffset()) + 1n).toString();
      await consumer.commitOffsets([{ topic, partition: batch.partition, offset }]);
      write("committed", batch.partition, offset);
      await heartbeat();
    },
  });
}

main().catch(fail);
