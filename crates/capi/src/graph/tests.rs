//! Tests of graphs and outcomes at the interface of C.

use super::*;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use sublet::Code;

fn options() -> sublet_run_options {
    sublet_run_options {
        size_bytes: 56,
        retries: 1,
        patience_ns: 2,
        prewarm_ns: NO_PREWARM_NS,
        keep_alive_ns: 3,
        hot_timeout_ns: 4,
        lease_timeout_ns: 5,
        fabric: c"tcp".as_ptr(),
    }
}

#[test]
fn options_convert_and_null_means_defaults() {
    // SAFETY: options that live here, and a null pointer.
    let said = |options: *const sublet_run_options| unsafe { sublet_run_options::to_facade(options) };
    let chosen = said(&options()).unwrap();
    assert_eq!((chosen.retries, chosen.prewarm, chosen.patience.as_nanos()), (1, None, 2));
    assert_eq!((chosen.keep_alive.as_nanos(), chosen.hot_timeout.as_nanos()), (3, 4));
    assert_eq!((chosen.lease_timeout.as_nanos(), chosen.fabric), (5, "tcp".parse().ok()));
    let at_once = sublet_run_options { prewarm_ns: 0, fabric: null(), ..options() };
    assert_eq!(said(&raw const at_once).unwrap().prewarm, Some(Duration::ZERO));
    assert_eq!(said(null()).unwrap().retries, RunOptions::default().retries);
    for wrong in [
        sublet_run_options { size_bytes: 8, ..options() },
        sublet_run_options { fabric: c"homing pigeon".as_ptr(), ..options() },
    ] {
        assert_eq!(said(&raw const wrong).unwrap_err().code, Code::InvalidArgument);
    }
}

/// Records the events, and abandons the run when a component is lost.
unsafe extern "C" fn hear(news: *const sublet_news, user: *mut c_void) -> c_int {
    // SAFETY: as `driven` calls it, with the list of the test.
    let (news, heard) = unsafe { (&*news, &mut *user.cast::<Vec<String>>()) };
    let text = |text: *const c_char| match text.is_null() {
        true => "-",
        // SAFETY: not null, so it is a string during the call.
        false => unsafe { CStr::from_ptr(text) }.to_str().unwrap(),
    };
    let sublet_news { event, attempt, took_ns, status, .. } = *news;
    let (component, message) = (text(news.component), text(news.message));
    heard.push(format!("{event} {attempt} {component} {took_ns} {status} {message}"));
    c_int::from(event == LOST)
}

#[test]
fn reports_events_until_the_listener_stops() {
    let mut heard: Vec<String> = Vec::new();
    let listener = Listener { call: Some(hear), user: (&raw mut heard).cast() };
    let component = || "a".to_owned();
    let error = || Error::new(Code::NoCapacity, "full\0");
    let ran = driven(listener, |news, goes_on| {
        news(&News::Began { component: component(), attempt: 2 });
        news(&News::Waits { component: component(), error: error() });
        news(&News::Ended { component: component(), took: Duration::from_nanos(7) });
        assert!(goes_on());
        news(&News::Lost { component: component(), error: error() });
        assert!(!goes_on());
        news(&News::Began { component: component(), attempt: 3 });
        Err(error())
    });
    assert_eq!(ran.map(drop).unwrap_err().code, Code::NoCapacity);
    let number = Code::NoCapacity.number();
    assert_eq!(
        heard,
        [
            "1 2 a 0 0 -",
            &format!("3 0 a 0 {number} full?"),
            "2 0 a 7 0 -",
            &format!("4 0 a 0 {number} full?")
        ]
    );
    let silent = Listener { call: None, user: null_mut() };
    assert!(silent.hear(&News::Lost { component: component(), error: error() }));
}

#[test]
fn writes_outcome_up_to_capacity() {
    let listener = Listener { call: None, user: null_mut() };
    let outputs =
        vec![("a".to_owned(), vec![b"one".to_vec(), Vec::new()]), ("b".to_owned(), vec![b"x".to_vec()])];
    let traffic = Traffic { writes: 3, written_bytes: 24, ..Traffic::default() };
    let channels = vec![ChannelUse { memory: "m".to_owned(), traffic: Some(traffic) }];
    let used = ComponentUse { component: "a".to_owned(), cpu_ns: 5, channels, ..ComponentUse::default() };
    let components = vec![used];
    let outcome =
        driven(listener, |_, _| Ok(Outcome { run: "r".to_owned(), outputs, components, result: None }))
            .unwrap();
    let outcome = &raw const *outcome;
    let mut told: [sublet_output; 2] =
        [(); 2].map(|()| sublet_output { component: null(), data: null(), len_bytes: 9, instance: 9 });
    let (mut count, mut used) = (0, 0);
    // SAFETY: an outcome and places that live here.
    let (first, second, third) = unsafe {
        (
            sublet_outcome_outputs(outcome, told.as_mut_ptr(), 2, &raw mut count),
            sublet_outcome_outputs(outcome, null_mut(), 1, &raw mut count),
            sublet_outcome_components(outcome, null_mut(), 0, &raw mut used),
        )
    };
    assert_eq!((first, second, third), (OK, Code::InvalidArgument.number(), OK));
    assert_eq!((count, used), (3, 1));
    assert_eq!((told[0].len_bytes, told[0].instance), (3, 0));
    assert_eq!((told[1].len_bytes, told[1].instance), (0, 1));
    let mut moved = [const { MaybeUninit::<sublet_channel_use>::uninit() }; 2];
    let mut known = MaybeUninit::<sublet_component_use>::uninit();
    // SAFETY: an outcome and places that live here, and of which the first is written.
    let (moved, known) = unsafe {
        assert_eq!(sublet_outcome_channels(outcome, moved.as_mut_ptr().cast(), 2, &raw mut count), OK);
        assert_eq!(sublet_outcome_components(outcome, known.as_mut_ptr(), 1, &raw mut used), OK);
        (moved[0].assume_init_ref(), known.assume_init_ref())
    };
    assert_eq!((count, moved.writes, moved.written_bytes, moved.reads, known.cpu_ns), (1, 3, 24, 0, 5));
    // SAFETY: strings of the outcome, which lives here.
    let names = unsafe { (CStr::from_ptr(moved.component), CStr::from_ptr(moved.memory)) };
    assert_eq!(names, (c"a", c"m"));
    let (mut name, mut len, mut byte) = (c"before".as_ptr(), 7, 0u8);
    // SAFETY: an outcome and places that live here.
    let (told, read) = unsafe {
        (
            sublet_outcome_result(outcome, &raw mut name, &raw mut len),
            sublet_outcome_read(outcome, 0, (&raw mut byte).cast(), 1),
        )
    };
    assert_eq!((told, read), (OK, Code::InvalidArgument.number()));
    assert!(name.is_null() && len == 0);
}
