//! Keeps an executor's bytes between the functions of a call, and in named buffers also between calls: in its own
//! memory, or in the engine's, such as that of a device, which thus is a memory component of the caller.
//!
//! ```text
//! resize|compress         what is between them has no name, and ends with the call
//! decode|@picture         the output stays under that name, and the answer is empty
//! @picture|resize         the input is what stayed; the call brings none
//! |@picture     @picture  the input stays; what stayed is answered
//! ```
//!
//! Invariants:
//! - A named buffer holds a complete output: a call that fails before it leaves the previous content.
//! - A buffer is written by one function and read by the next; no function writes to the buffer that it reads.
//! - With the same names and sizes nothing is allocated from the second call on.

use sublet_proto::{Code, Error};

use super::engine::{BufferName, Execute, InputSource, MAX_PLACES, OutputSink};
use super::{AlignedBytes, PLACE, THEN, check_space};

/// A device's memory without a name that stays for the next call, in bytes of a place.
const MAX_SPARE_BYTES: usize = 4 << 20;

/// The buffers of an executor.
pub(super) struct NamedBuffers {
    named: Vec<(String, BufferName)>,
    /// Content of each buffer, unless the engine keeps it.
    own: [Option<BufferContent>; BufferName::COUNT],
    /// Largest content of a buffer, in bytes.
    free_space: usize,
}

struct BufferContent {
    bytes: AlignedBytes,
    len: u64,
}

impl NamedBuffers {
    pub fn new(free_space: usize) -> NamedBuffers {
        NamedBuffers { named: Vec::with_capacity(MAX_PLACES), own: std::array::from_fn(|_| None), free_space }
    }

    /// Executes a call, and returns the length of its answer.
    pub fn call<E: Execute>(
        &mut self,
        call: &str,
        input: &[u8],
        output: &mut [u8],
        by: &mut E,
    ) -> Result<u32, Error> {
        let mut steps = call.split(THEN).peekable();
        let mut from = InputSource::Given(input);
        let is_place = |step: &&str| step.starts_with(PLACE);
        if let Some(name) = steps.next_if(is_place) {
            from = InputSource::Kept(self.find(&name[PLACE.len_utf8()..], input)?);
            if steps.peek().is_none() {
                return self.step(None, from, OutputSink::Given(output), by);
            }
        } else if call.strip_prefix(THEN).is_some_and(|rest| rest.starts_with(PLACE)) {
            steps.next();
        }
        let mut written = 0;
        while let Some(step) = steps.next() {
            if let Some(name) = step.strip_prefix(PLACE) {
                from = self.keep(name, from, by)?;
                written = 0;
                continue;
            }
            let next = self.fresh(from);
            let to = match steps.peek() {
                Some(_) => OutputSink::Kept(next, self.free_space()),
                None => OutputSink::Given(&mut *output),
            };
            let executed = self.step(Some(step), from, to, by);
            written =
                executed.map_err(|Error { code, message }| Error::new(code, format!("{step}: {message}")))?;
            from = InputSource::Kept(next);
        }
        Ok(written)
    }

    /// The call was answered.
    pub fn rest<E: Execute>(&mut self, by: &mut E) {
        if E::KEEPS && self.free_space > MAX_SPARE_BYTES {
            BufferName::all().filter(|place| !self.is_named(*place)).for_each(|place| by.forget(place));
        }
    }

    fn find(&self, name: &str, input: &[u8]) -> Result<BufferName, Error> {
        if !input.is_empty() {
            let message =
                format!("{} bytes of input, and the input is what is in place {name:?}", input.len());
            return Err(Error::new(Code::InvalidArgument, message));
        }
        let found = self.named.iter().find(|(known, _)| known == name).map(|(_, place)| *place);
        found.ok_or_else(|| Error::new(Code::InvalidArgument, format!("nothing was left in place {name:?}")))
    }

    /// Gives a name to the buffer that holds the content, and takes the name from the buffer that had it. An empty input
    /// removes the content of that name.
    fn keep<'call, E: Execute>(
        &mut self,
        name: &str,
        from: InputSource<&'call [u8]>,
        by: &mut E,
    ) -> Result<InputSource<&'call [u8]>, Error> {
        let wrong = |message: String| Err(Error::new(Code::InvalidArgument, message));
        let known = self.named.iter().position(|(known, _)| known == name);
        let place = match from {
            _ if name.is_empty() => return wrong("a place without a name".into()),
            InputSource::Given([]) => {
                if let Some(known) = known {
                    self.forget(known, by);
                }
                return Ok(from);
            }
            _ if known.is_none() && self.named.len() == MAX_PLACES => {
                return wrong(format!("place {name:?}: an executor has {MAX_PLACES} places at most"));
            }
            InputSource::Kept(place) if self.is_named(place) => {
                return wrong(format!("place {name:?}: what is left there is in another place"));
            }
            InputSource::Kept(place) => place,
            InputSource::Given(_) => {
                let place = self.fresh(from);
                self.step(None, from, OutputSink::Kept(place, self.free_space()), by)?;
                place
            }
        };
        match known {
            Some(known) => self.named[known].1 = place,
            None => self.named.push((name.to_owned(), place)),
        }
        Ok(InputSource::Kept(place))
    }

    fn forget<E: Execute>(&mut self, known: usize, by: &mut E) {
        let (_, place) = self.named.swap_remove(known);
        self.own[place.index()] = None;
        if E::KEEPS {
            by.forget(place);
        }
    }

    /// A buffer without a name that the function does not read.
    fn fresh(&self, from: InputSource<&[u8]>) -> BufferName {
        let read = |place: &BufferName| matches!(from, InputSource::Kept(read) if read == *place);
        let mut free = BufferName::all().filter(|place| !self.is_named(*place) && !read(place));
        free.next().expect("there are two more than can have names, and one is read")
    }

    fn is_named(&self, place: BufferName) -> bool {
        self.named.iter().any(|(_, named)| *named == place)
    }

    fn free_space(&self) -> u32 {
        u32::try_from(self.free_space).unwrap_or(u32::MAX)
    }

    /// Executes a function, or without one copies.
    fn step<E: Execute>(
        &mut self,
        function: Option<&str>,
        from: InputSource<&[u8]>,
        to: OutputSink<&mut [u8]>,
        by: &mut E,
    ) -> Result<u32, Error> {
        let free_space = self.free_space;
        let mut execute = |from: InputSource<&[u8]>, to: OutputSink<&mut [u8]>| {
            let len = match function {
                Some(function) => by.execute(function, from, to)?,
                None if E::KEEPS => by.copy(from, to)?,
                None => copy(from, to)?,
            };
            check_space(len as usize, free_space).map(|_| len)
        };
        if E::KEEPS {
            return execute(from, to);
        }
        // Taken, so that it can be written while another is read.
        let mut held = match to {
            OutputSink::Kept(place, _) => {
                let held = self.own[place.index()].take();
                Some((
                    place,
                    held.unwrap_or_else(|| BufferContent { bytes: AlignedBytes::new(free_space), len: 0 }),
                ))
            }
            OutputSink::Given(_) => None,
        };
        let from = match from {
            InputSource::Given(bytes) => bytes,
            InputSource::Kept(place) => {
                self.own[place.index()].as_ref().map_or(&[][..], |held| held.bytes.first(held.len))
            }
        };
        let into = match (to, &mut held) {
            (OutputSink::Kept(..), Some((_, held))) => &mut held.bytes.all()[..free_space],
            (OutputSink::Given(bytes), _) => bytes,
            (OutputSink::Kept(..), None) => &mut [],
        };
        let executed = execute(InputSource::Given(from), OutputSink::Given(into));
        if let Some((place, mut held)) = held {
            held.len = executed.as_ref().map_or(0, |len| u64::from(*len));
            self.own[place.index()] = Some(held);
        }
        executed
    }
}

/// Copies bytes for a call without a function, where this process has both.
fn copy(from: InputSource<&[u8]>, to: OutputSink<&mut [u8]>) -> Result<u32, Error> {
    match (from, to) {
        (InputSource::Given(from), OutputSink::Given(to)) if from.len() <= to.len() => {
            to[..from.len()].copy_from_slice(from);
            #[expect(
                clippy::cast_possible_truncation,
                reason = "an executor's buffers have `MAX_BYTES` at most"
            )]
            let len = from.len() as u32;
            Ok(len)
        }
        (from, _) => Err(Error::new(Code::Internal, format!("{from:?} was to be copied"))),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const ROOM: usize = 8;

    /// Implements `add`, which returns its input and one more letter, and `fail`. It keeps the content of buffers if
    /// `KEEPS` is set.
    #[derive(Default)]
    struct Functions<const KEEPS: bool>([Option<Vec<u8>>; BufferName::COUNT]);

    impl<const KEEPS: bool> Functions<KEEPS> {
        fn read(&self, from: InputSource<&[u8]>) -> Vec<u8> {
            match from {
                InputSource::Given(bytes) => bytes.to_vec(),
                InputSource::Kept(place) => self.0[place.index()].clone().expect("something is there"),
            }
        }

        fn write(&mut self, bytes: Vec<u8>, to: OutputSink<&mut [u8]>) -> u32 {
            let len = bytes.len();
            match to {
                OutputSink::Given(output) => {
                    let most = len.min(output.len());
                    output[..most].copy_from_slice(&bytes[..most]);
                }
                OutputSink::Kept(place, most_bytes) => {
                    assert_eq!(most_bytes, ROOM as u32);
                    self.0[place.index()] = Some(bytes);
                }
            }
            len as u32
        }
    }

    impl<const KEEPS: bool> Execute for Functions<KEEPS> {
        const KEEPS: bool = KEEPS;

        fn execute(
            &mut self,
            function: &str,
            from: InputSource<&[u8]>,
            to: OutputSink<&mut [u8]>,
        ) -> Result<u32, Error> {
            let is_same =
                matches!((&from, &to), (InputSource::Kept(from), OutputSink::Kept(to, _)) if from == to);
            assert!(!is_same, "it would write to where it reads");
            assert!(KEEPS || matches!((&from, &to), (InputSource::Given(_), OutputSink::Given(_))));
            let mut bytes = self.read(from);
            bytes.push(b'x');
            let len = self.write(bytes, to);
            if function == "add" { Ok(len) } else { Err(Error::new(Code::FunctionFailed, "no")) }
        }

        fn copy(&mut self, from: InputSource<&[u8]>, to: OutputSink<&mut [u8]>) -> Result<u32, Error> {
            let bytes = self.read(from);
            Ok(self.write(bytes, to))
        }

        fn forget(&mut self, place: BufferName) {
            self.0[place.index()] = None;
        }

        fn rest(&mut self) {}
    }

    #[derive(Clone, Debug)]
    enum Step {
        Add,
        Fail,
        Keep(u8),
    }

    #[derive(Clone, Debug)]
    struct Call {
        /// The number of the buffer that is read, or the given input.
        from: Result<u8, Vec<u8>>,
        steps: Vec<Step>,
    }

    impl Call {
        fn text(&self) -> String {
            let step = |step: &Step| match step {
                Step::Add => "add".to_owned(),
                Step::Fail => "fail".to_owned(),
                Step::Keep(name) => format!("@{name}"),
            };
            let mut steps: Vec<String> = self.steps.iter().map(step).collect();
            match self.from {
                Ok(name) => steps.insert(0, format!("@{name}")),
                Err(_) if matches!(self.steps[0], Step::Keep(_)) => steps.insert(0, String::new()),
                Err(_) => {}
            }
            steps.join("|")
        }

        /// The expected answer, with a map in place of the buffers.
        fn expected(&self, places: &mut BTreeMap<u8, Vec<u8>>) -> Option<Vec<u8>> {
            let (mut bytes, mut is_named, mut is_given) = match &self.from {
                Ok(name) => (places.get(name)?.clone(), true, false),
                Err(given) => (given.clone(), false, true),
            };
            let mut answer = bytes.clone();
            for step in &self.steps {
                match step {
                    Step::Fail => return None,
                    Step::Add => {
                        bytes.push(b'x');
                        if bytes.len() > ROOM {
                            return None;
                        }
                        (is_named, is_given, answer) = (false, false, bytes.clone());
                    }
                    Step::Keep(name) => {
                        answer.clear();
                        if is_given && bytes.is_empty() {
                            places.remove(name);
                            continue;
                        }
                        if is_named || places.len() == MAX_PLACES && !places.contains_key(name) {
                            return None;
                        }
                        places.insert(*name, bytes.clone());
                        (is_named, is_given) = (true, false);
                    }
                }
            }
            Some(answer)
        }
    }

    fn a_call() -> impl Strategy<Value = Call> {
        let name = || 0u8..20;
        let step = prop_oneof![5 => Just(Step::Add), 1 => Just(Step::Fail), 6 => name().prop_map(Step::Keep)];
        let given = proptest::collection::vec(any::<u8>(), 0..=ROOM);
        let from = prop_oneof![name().prop_map(Ok), given.prop_map(Err)];
        (from, proptest::collection::vec(step, 1..5)).prop_map(|(from, steps)| Call { from, steps })
    }

    fn check<const KEEPS: bool>(calls: &[Call]) {
        let (mut places, mut by) = (NamedBuffers::new(ROOM), Functions::<KEEPS>::default());
        let mut expected = BTreeMap::new();
        let mut output = [0; ROOM];
        let mut call = |text: &str, input: &[u8]| {
            let called = places.call(text, input, &mut output, &mut by);
            places.rest(&mut by);
            called.ok().map(|len| output[..len as usize].to_vec())
        };
        for made in calls {
            let input = made.from.as_ref().err().map_or(&[][..], |given| given.as_slice());
            assert_eq!(call(&made.text(), input), made.expected(&mut expected), "{made:?}");
            for name in 0..20 {
                assert_eq!(call(&format!("@{name}"), &[]).as_ref(), expected.get(&name), "{made:?}: {name}");
            }
        }
    }

    proptest! {
        #[test]
        fn places_hold_what_was_left_there_whoever_keeps_it(calls in proptest::collection::vec(a_call(), 1..60)) {
            check::<false>(&calls);
            check::<true>(&calls);
        }
    }
}
