//! Refusals and errors as a caller converts them.

use std::error::Error;
use std::io;

use super::*;

type AnyError = Box<dyn Error + Send + Sync + 'static>;

/// A value that is neither `Send` nor `Sync`.
type Opaque = Rc<Cell<u8>>;

#[test]
fn refusal_of_any_value_converts_by_its_kind_with_a_question_mark() {
    fn fails(refused: Refused<Opaque>) -> Result<(), AnyError> {
        Err(refused).map_err(|refused| refused.kind())?;
        Ok(())
    }
    fn is_static_error<E: Error + Copy + Send + Sync + 'static>() {}
    is_static_error::<RefusedKind>();
    is_static_error::<ReplyError>();
    is_static_error::<TimeoutError>();
    for (refused, text) in [
        (Refused::Full(Opaque::default()), "there is no room"),
        (Refused::Reserved { value: Opaque::default(), keys: 9, threads: 3 }, "9 are reserved"),
        (Refused::Busy(Opaque::default()), "full for a moment"),
        (Refused::NotAttached(Opaque::default()), "TimerService::attach"),
        (Refused::Closed(Opaque::default()), "shut down"),
        (Refused::NoSuchShard(Opaque::default()), "no such shard"),
    ] {
        let kind = refused.kind();
        assert_eq!(format!("{refused}"), kind.to_string());
        assert_eq!(format!("{refused:?}"), format!("{kind:?}(..)"), "it shows no value");
        let error = fails(refused).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
        assert_eq!(error.downcast_ref::<RefusedKind>(), Some(&kind));
    }
}

#[test]
fn refusal_of_a_schedule_converts_with_a_question_mark_by_its_kind() {
    fn fill(lab: &Lab<u32>) -> Result<(), AnyError> {
        loop {
            lab.timers().schedule(FAR, 0)?;
        }
    }
    let lab = Lab::<u32>::new(builder(1).capacity(4));
    let error = fill(&lab).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(RefusedKind::Full)), "{error}");
    // The value of a callback's refusal runs when it is called.
    let refused = lab.timers().schedule_fn(ms(1), |timers| assert_eq!(timers.len(), 4));
    let Err(Refused::Full(call)) = refused else { panic!("the shard is full") };
    call(lab.timers());
}

#[test]
fn timeout_error_converts_into_an_io_error_of_a_fitting_kind() {
    fn read(result: Result<u8, TimeoutError>) -> io::Result<u8> {
        Ok(result?)
    }
    assert_eq!(read(Ok(7)).unwrap(), 7);
    let reserved = RefusedKind::Reserved { keys: 9, threads: 3 };
    for (error, kind) in [
        (TimeoutError::Elapsed, io::ErrorKind::TimedOut),
        (TimeoutError::NoTimer(RefusedKind::Full), io::ErrorKind::OutOfMemory),
        (TimeoutError::NoTimer(reserved), io::ErrorKind::OutOfMemory),
        (TimeoutError::NoTimer(RefusedKind::Busy), io::ErrorKind::WouldBlock),
        (TimeoutError::NoTimer(RefusedKind::NotAttached), io::ErrorKind::WouldBlock),
        (TimeoutError::NoTimer(RefusedKind::Closed), io::ErrorKind::NotConnected),
    ] {
        let converted = read(Err(error)).unwrap_err();
        assert_eq!(converted.kind(), kind);
        let source = converted.get_ref().and_then(|inner| inner.downcast_ref::<TimeoutError>());
        assert_eq!(source, Some(&error));
    }
}

#[test]
fn refusal_of_a_callback_converts_into_every_box_with_a_question_mark() {
    fn here(timers: &Timers<u8>) -> Result<TimerId, AnyError> {
        let local = Rc::new(());
        Ok(timers.schedule_fn(FAR, move |_| drop(local))?)
    }
    fn there(timers: Handle<u8>) -> Result<TimerId, AnyError> {
        let sent = Cell::new(1);
        Ok(timers.schedule_fn(FAR, move |_| sent.set(2))?)
    }
    fn not_sent(timers: &Timers<u8>) -> Result<TimerId, Box<dyn Error>> {
        let (timer, _reply) = timers.schedule_task(FAR, |_| 7)?;
        Repeat::at_fixed_rate(ms(1))?.begin(timers, |_| {})?;
        Ok(timer)
    }
    let lab = Lab::<u8>::new(builder(1).capacity(2));
    let client = lab.client();
    for n in 0..2 {
        lab.timers().schedule(FAR, n).unwrap();
    }
    for error in [here(lab.timers()), not_sent(lab.timers()).map_err(|e| e.to_string().into())] {
        let error = error.unwrap_err();
        assert!(error.to_string().starts_with("there is no room"), "{error}");
    }
    let error = there(client.on(SHARD)).unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&RefusedKind::Busy), "{error}");
}
