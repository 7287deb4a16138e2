//! Waits for an event that a driver can only be polled for: eagerly at first, since most launches are short, then with
//! pauses.

use std::time::{Duration, Instant};

use crate::{DeviceError, LaunchProgress};

/// Longest pause between two polls.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);
/// Time for which polls follow each other at once: a pause takes longer than most launches.
const EAGER: Duration = Duration::from_micros(100);

/// Polls until a launch has ended or the time is over.
pub(crate) fn until(
    end: Instant,
    mut has_ended: impl FnMut() -> Result<bool, DeviceError>,
) -> Result<LaunchProgress, DeviceError> {
    let (begun, mut pause) = (Instant::now(), EAGER / 2);
    while !has_ended()? {
        let now = Instant::now();
        if now >= end {
            return Ok(LaunchProgress::RunsOn);
        }
        if now - begun < EAGER {
            std::thread::yield_now();
        } else {
            std::thread::sleep(pause.min(end - now));
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
    Ok(LaunchProgress::Launched)
}
