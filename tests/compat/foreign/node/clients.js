// A short round trip of kafkajs: topic, producer with gzip, group with commits, transactions, admin calls.
// Prints one JSON object of what it saw; the Python test beside it says what should have been seen.
const { Kafka, CompressionTypes, logLevel } = require("kafkajs");

const values = (from, to) =>
  Array.from({ length: to - from }, (_, number) => `value ${String(from + number).padStart(3, "0")}`);

async function consume(kafka, topic, groupId, count) {
  const consumer = kafka.consumer({ groupId, maxWaitTimeInMs: 100 });
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  const found = [];
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error));
    consumer
      .run({
        autoCommit: false,
        eachMessage: async ({ partition, message }) => {
          found.push(message.value.toString());
          const offset = String(BigInt(message.offset) + 1n);
          await consumer.commitOffsets([{ topic, partition, offset }]);
          if (found.length === count) resolve();
        },
      })
      .catch(reject);
  });
  await consumer.disconnect();
  return found;
}

async function transactions(kafka, topic) {
  const producer = kafka.producer({ transactionalId: `${topic}-tx`, idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  for (const [number, end] of ["commit", "abort", "commit"].entries()) {
    const transaction = await producer.transaction();
    const messages = values(30 + number * 10, 40 + number * 10).map((value) => ({ value }));
    await transaction.send({ topic, messages });
    await transaction[end]();
  }
  await producer.disconnect();
}

async function main(bootstrap, topic) {
  const kafka = new Kafka({ clientId: "kafkajs", brokers: [bootstrap], logLevel: logLevel.ERROR });
  const admin = kafka.admin();
  await admin.connect();
  await admin.createTopics({ topics: [{ topic, numPartitions: 1 }], waitForLeaders: true });
  const producer = kafka.producer();
  await producer.connect();
  await producer.send({
    topic,
    acks: -1,
    compression: CompressionTypes.GZIP,
    messages: values(0, 30).map((value) => ({ key: value, value, headers: { number: value.slice(-3) } })),
  });
  await producer.disconnect();
  const groupId = `${topic}-group`;
  const early = await consume(kafka, topic, groupId, 30);
  await transactions(kafka, topic);
  const late = await consume(kafka, topic, groupId, 20);
  const [{ partitions }] = await admin.fetchOffsets({ groupId, topics: [topic] });
  const { groups } = await admin.listGroups();
  const described = await admin.describeGroups([groupId]);
  const ends = await admin.fetchTopicOffsets(topic);
  await admin.deleteGroups([groupId]);
  await admin.deleteTopics({ topics: [topic] });
  await admin.disconnect();
  return {
    early,
    late,
    committed: Number(partitions[0].offset),
    end: Number(ends[0].high),
    listed: groups.some((group) => group.groupId === groupId),
    state: described.groups[0].state,
  };
}

main(process.argv[2], process.argv[3]).then(
  (seen) => console.log(JSON.stringify(seen)),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
