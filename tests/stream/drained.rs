//! What a peer takes is its activity, where a write had to wait for it.

use corewheel::Runtime;
use corewheel::stream::StreamTimeout::ReadIdle;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use super::*;

fn check_drained<K: Kind>() {
    let mut lab = lab();
    let (mut stream, mut peer) = duplex::<K>(&lab, NONE.read_idle(ms(LIMIT)));
    ready(write(&mut stream, &[7; ROOM]));
    assert!(read(&mut stream).is_pending());
    for _ in 0..20 {
        assert!(write(&mut stream, b"aaaa").is_pending());
        lab.advance_ticks(LIMIT - 1);
        assert!(read(&mut stream).is_pending());
        // The peer sends nothing, and takes 4 bytes.
        assert_eq!(ready(read(&mut peer)).len(), 4);
        assert_eq!(ready(write(&mut stream, b"aaaa")), 4);
    }
    // A write that waits, and does not go on, is no activity.
    assert!(write(&mut stream, b"a").is_pending());
    check_ends::<K, _>(&mut lab, LIMIT, ReadIdle(ms(LIMIT)), || read(&mut stream));
}

#[test]
fn write_that_waited_and_goes_on_begins_the_time_of_a_read_again() {
    both!(check_drained);
}

fn check_buffered<K: Kind>() {
    let mut lab = lab();
    let (mut stream, _peer) = duplex::<K>(&lab, NONE.read_idle(ms(LIMIT)));
    assert!(read(&mut stream).is_pending());
    for _ in 0..4 {
        lab.advance_ticks(LIMIT / 5);
        // There is room for it, whatever the peer does.
        ready(write(&mut stream, b"aaaa"));
    }
    check_ends::<K, _>(&mut lab, LIMIT / 5, ReadIdle(ms(LIMIT)), || read(&mut stream));
}

#[test]
fn write_that_is_accepted_at_once_is_no_activity_of_the_peer() {
    both!(check_buffered);
}

/// The client pauses for much less than the limit, and for longer than the limit in all.
const LONG: Duration = ms(2_000);
const PAUSE: Duration = ms(200);
const PARTS: usize = 20;
/// Twenty of them are more than the buffers hold.
const PART: usize = 200 << 10;

#[test]
fn client_that_reads_a_long_answer_and_sends_nothing_is_not_idle() {
    let service = TimerService::builder().shards(1).runtime(Runtime::Thread).start().unwrap();
    let timers = service.handle();
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = servers::listen().unwrap();
        let address = listener.local_addr().unwrap();
        let client = tokio::spawn(async move {
            let socket = TcpSocket::new_v4().unwrap();
            // What the server sends does not fit into the buffers of this client.
            socket.set_recv_buffer_size(32 << 10).unwrap();
            let mut client = socket.connect(address).await.unwrap();
            let mut part = vec![0; PART];
            for _ in 0..PARTS {
                client.read_exact(&mut part).await.unwrap();
                tokio::time::sleep(PAUSE).await;
            }
            client.write_all(b"x").await.unwrap();
        });
        let (stream, _) = listener.accept().await.unwrap();
        let limits = StreamLimits::default().read_idle(LONG).write_stall(LONG);
        let (mut reader, mut writer) = tokio::io::split(TimedIo::new(stream, timers, limits));
        let written = tokio::spawn(async move {
            let part = vec![b'a'; PART];
            for _ in 0..PARTS {
                writer.write_all(&part).await?;
            }
            Ok::<_, io::Error>(())
        });
        assert_eq!(reader.read_u8().await.unwrap(), b'x');
        written.await.unwrap().unwrap();
        client.await.unwrap();
    });
}
