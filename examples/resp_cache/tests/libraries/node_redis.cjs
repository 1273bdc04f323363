// Commands and events by node-redis, in both versions of the protocol.
const assert = require('assert');
const { createClient } = require('redis');

async function talk(RESP) {
  const url = `redis://127.0.0.1:${process.argv[2]}/0`;
  const client = await createClient({ url, RESP, name: 'tester' }).connect();
  assert.equal(await client.set('k', 'v', { PX: 60_000 }), 'OK');
  assert.ok((await client.pTTL('k')) > 0 && (await client.ttl('k')) > 0);
  assert.deepEqual(await client.mGet(['k', 'none']), ['v', null]);
  assert.equal(await client.incr('n'), 1);
  assert.equal(await client.getEx('k', { type: 'EX', value: 5 }), 'v');
  assert.equal(await client.persist('k'), 1);
  assert.equal(await client.getDel('k'), 'v');
  assert.equal(await client.exists('n'), 1);
  assert.equal(await client.dbSize(), 1);
  assert.equal(await client.ping(), 'PONG');
  assert.equal((await client.configGet('maxmemory')).maxmemory, '0');
  assert.ok((await client.info()).includes('used_memory'));
  const subscriber = await client.duplicate().connect();
  const events = [];
  const both = new Promise((resolve) => {
    const add = (key) => events.push(key) === 2 && resolve();
    subscriber.pSubscribe('__keyevent@0__:*', add);
    subscriber
      .subscribe('__keyevent@0__:expired', add)
      .then(() => client.set('short', 'v', { PX: 20 }));
  });
  await both;
  assert.deepEqual(events, ['short', 'short']);
  await subscriber.pUnsubscribe();
  await subscriber.unsubscribe();
  await subscriber.close();
  await client.flushAll();
  await client.quit();
}

talk(2).then(() => talk(3)).then(() => console.log('done'));
