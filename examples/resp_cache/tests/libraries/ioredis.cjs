// Commands and events by ioredis, as it connects by default.
const assert = require('assert');
const Redis = require('ioredis');

async function talk() {
  const client = new Redis(process.argv[2], { db: 0, connectionName: 'tester' });
  assert.equal(await client.set('k', 'v', 'PX', 60_000), 'OK');
  assert.ok((await client.pttl('k')) > 0 && (await client.ttl('k')) > 0);
  assert.deepEqual(await client.mget('k', 'none'), ['v', null]);
  assert.equal(await client.incr('n'), 1);
  assert.equal(await client.getex('k', 'EX', 5), 'v');
  assert.equal(await client.persist('k'), 1);
  assert.equal(await client.getdel('k'), 'v');
  assert.equal(await client.exists('n', 'none'), 1);
  assert.equal(await client.dbsize(), 1);
  assert.equal(await client.ping(), 'PONG');
  assert.ok(JSON.stringify(await client.config('GET', 'maxmemory')).includes('maxmemory'));
  const subscriber = new Redis(process.argv[2]);
  const events = [];
  const both = new Promise((resolve) => {
    const add = (key) => events.push(key) === 2 && resolve();
    subscriber.on('pmessage', (_pattern, _channel, key) => add(key));
    subscriber.on('message', (_channel, key) => add(key));
  });
  await subscriber.psubscribe('__keyevent@0__:*');
  await subscriber.subscribe('__keyevent@0__:expired');
  await client.set('short', 'v', 'PX', 20);
  await both;
  assert.deepEqual(events, ['short', 'short']);
  await subscriber.punsubscribe('__keyevent@0__:*');
  await subscriber.unsubscribe('__keyevent@0__:expired');
  assert.equal(await subscriber.get('short'), null);
  await subscriber.quit();
  await client.flushall();
  client.disconnect();
}

talk().then(() => console.log('done'));
