// Sessions of kafkajs: tests/support/kafka/sasl_clients.py describes what all such programs do.
// Arguments: the bootstrap servers, a file (they continue until it exists), and a file with logins.
const fs = require('fs');
const { Kafka, logLevel } = require('kafkajs');

const PLAIN_PARTITIONS = 2;
const ROUND_MS = 100;
const ROUNDS_PER_TRANSACTION = 5;
const ABORTED_OF = 3;
const READ_ON_MS = 60_000;

const [bootstrap, until, file] = process.argv.slice(2);
const pause = () => new Promise((done) => setTimeout(done, ROUND_MS));

async function run(login) {
  const topic = login.Name;
  const connect = (suffix) => new Kafka({
    clientId: topic + suffix,
    brokers: bootstrap.split(','),
    sasl: { mechanism: login.Mechanism.toLowerCase(), username: login.User, password: login.Password },
    retry: { retries: 40, maxRetryTime: 1_000 },
    logLevel: logLevel.NOTHING,
  });
  const idempotent = { idempotent: true, maxInFlightRequests: 1 };
  const plain = connect('').producer(idempotent);
  const transactional = connect('.transactions').producer({ ...idempotent, transactionalId: topic });
  const reader = connect('.group').consumer({ groupId: topic });
  const parts = [plain, transactional, reader];
  await Promise.all(parts.map((each) => each.connect()));
  const written = [0, 0, 0];
  const next = [0, 0, 0];
  const nextOffsets = [0, 0, 0];
  let failure;

  await reader.subscribe({ topic, fromBeginning: true });
  await reader.run({
    eachMessage: async ({ partition, message }) => {
      const offset = Number(message.offset);
      if (offset < nextOffsets[partition]) return; // again, as it joined again before it had committed
      nextOffsets[partition] = offset + 1;
      const expected = String(next[partition]++);
      if (String(message.value) !== expected) {
        failure ??= new Error(`partition ${partition}: ${message.value}, not ${expected}`);
      }
    },
  });

  const take = (partition) => ({ partition, value: String(written[partition]++) });
  for (let round = 0; !fs.existsSync(until) && !failure; round++) {
    const messages = [...Array(PLAIN_PARTITIONS).keys()].map(take);
    await plain.send({ topic, messages });
    if (round % ROUNDS_PER_TRANSACTION === 0) {
      const transaction = await transactional.transaction();
      if ((round / ROUNDS_PER_TRANSACTION) % ABORTED_OF === 1) {
        await transaction.send({ topic, messages: [{ partition: PLAIN_PARTITIONS, value: 'aborted' }] });
        await transaction.abort();
      } else {
        await transaction.send({ topic, messages: [take(PLAIN_PARTITIONS), take(PLAIN_PARTITIONS)] });
        await transaction.commit();
      }
    }
    await pause();
  }
  for (const deadline = Date.now() + READ_ON_MS; String(next) !== String(written); await pause()) {
    if (Date.now() > deadline) failure ??= new Error(`read ${next} of ${written}`);
    if (failure) throw failure;
  }
  await Promise.all(parts.map((each) => each.disconnect()));
  console.log(topic, JSON.stringify(written));
}

Promise.all(JSON.parse(fs.readFileSync(file)).map(run)).then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
