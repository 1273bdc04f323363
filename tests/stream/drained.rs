//! What a peer takes is its activity, where a write had to wait for it.

use corewheel::stream::StreamTimeout::ReadIdle;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use super::*;

both_sides!(write_that_waited_and_goes_on_begins_the_time_of_a_read_again);
fn write_that_waited_and_goes_on_begins_the_time_of_a_read_again<K: Kind>() {
    let (mut lab, mut stream, mut peer) = open::<K>(NONE.read_idle(ms(LIMIT)));
    ready(write(&mut stream, &[7; ROOM]));
    assert!(read(&mut stream).is_pending());
    for _ in 0..20 {
        assert!(write(&mut stream, b"aaaa").is_pending());
        check_waits(&mut lab, LIMIT - 1, &mut stream);
        // The peer sends nothing, and takes 4 bytes.
        take(&mut peer, &mut stream);
    }
    // A write that waits, and does not go on, is no activity.
    assert!(write(&mut stream, b"a").is_pending());
    check_ends::<K, _>(&mut lab, LIMIT, ReadIdle(ms(LIMIT)), || read(&mut stream));
}

both_sides!(write_that_is_accepted_at_once_is_no_activity_of_the_peer);
fn write_that_is_accepted_at_once_is_no_activity_of_the_peer<K: Kind>() {
    let (mut lab, mut stream, _peer) = open::<K>(NONE.read_idle(ms(LIMIT)));
    assert!(read(&mut stream).is_pending());
    for _ in 0..4 {
        lab.advance_ticks(LIMIT / 5);
        // There is room for it, whatever the peer does.
        ready(write(&mut stream, b"aaaa"));
    }
    check_ends::<K, _>(&mut lab, LIMIT / 5, ReadIdle(ms(LIMIT)), || read(&mut stream));
}

/// The client pauses for much less than the limit, and for longer than the limit in all.
const LONG: Duration = ms(2_000);
const PAUSE: Duration = ms(200);
const PARTS: usize = 20;
/// Twenty of them are more than the buffers hold.
const PART: usize = 200 << 10;

#[test]
fn client_that_reads_a_long_answer_and_sends_nothing_is_not_idle() {
    let (service, runtime) = beside();
    let timers = service.handle();
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
