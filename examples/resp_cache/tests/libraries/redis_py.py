"""Commands and events by redis-py, in both versions of the protocol."""

import sys
import time

import redis


def talk(protocol):
    client = redis.Redis(port=int(sys.argv[1]), protocol=protocol, client_name="tester", db=0)
    assert client.set("k", "v", px=60_000) and client.get("k") == b"v"
    assert 0 < client.pttl("k") <= 60_000 and 0 < client.ttl("k") <= 60
    assert client.set("later", "w", exat=int(time.time()) + 100, nx=True)
    assert client.mget("k", "later", "none") == [b"v", b"w", None]
    assert client.incr("n") == 1 and client.exists("n", "none") == 1
    assert client.getex("k", ex=50) == b"v" and client.getdel("later") == b"w"
    assert client.expire("k", 9) and client.persist("k") and client.ttl("k") == -1
    assert client.ping() and client.dbsize() == 2 and client.delete("k", "n") == 2
    assert client.info()["used_memory"] == 0 and client.config_get("maxmemory*")["maxmemory"] == "0"
    events = client.pubsub()
    events.psubscribe("__keyevent@0__:*")
    events.subscribe("__keyevent@0__:expired")
    client.set("short", "v", px=20)
    expected, found = {"psubscribe", "subscribe", "pmessage", "message"}, {}
    end = time.time() + 20
    while set(found) != expected and time.time() < end:
        message = events.get_message(timeout=1)
        found |= {message["type"]: message["data"]} if message else {}
    assert found["message"] == found["pmessage"] == b"short", found
    events.ping()
    events.punsubscribe()
    events.unsubscribe()
    while events.subscribed:
        assert events.get_message(timeout=20)
    events.close()
    client.flushall()
    client.close()


talk(2)
talk(3)
print("done")
