//! The interface of an executor to the engine that executes its functions.

use sublet_proto::Error;

/// Named places of an executor, at most.
pub const MAX_PLACES: usize = 16;
/// A place's number, below [`BufferName::COUNT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferName(pub u8);

impl BufferName {
    /// Number of buffers: a function may read one and write one beside those with names.
    pub const COUNT: usize = MAX_PLACES + 2;

    /// All buffers, in the order of their numbers.
    pub(super) fn all() -> impl Iterator<Item = BufferName> {
        (0..).take(BufferName::COUNT).map(BufferName)
    }

    /// The number as an index.
    pub fn index(self) -> usize {
        self.0.into()
    }
}

/// The engine that executes an executor's functions.
pub trait Execute {
    /// Set if the engine keeps the content of buffers, as in the memory of a device, and not the executor.
    const KEEPS: bool;

    /// Executes a function, and returns the length of its output.
    ///
    /// # Errors
    /// The function's error.
    fn execute(
        &mut self,
        function: &str,
        from: InputSource<&[u8]>,
        to: OutputSink<&mut [u8]>,
    ) -> Result<u32, Error>;

    /// Copies the input to a buffer, or a buffer to the output, and returns the number of bytes.
    ///
    /// # Errors
    /// The engine's error.
    fn copy(&mut self, from: InputSource<&[u8]>, to: OutputSink<&mut [u8]>) -> Result<u32, Error>;

    /// Discards the content of a buffer.
    fn forget(&mut self, place: BufferName);

    /// Called when the caller has its answer.
    fn rest(&mut self);
}

/// Input of a function that may follow another.
#[derive(Clone, Copy, Debug)]
pub enum InputSource<Bytes> {
    /// The input that the caller has passed.
    Given(Bytes),
    /// The content of a buffer.
    Kept(BufferName),
}

/// Output of a function that may be followed by another.
#[derive(Clone, Copy, Debug)]
pub enum OutputSink<Bytes> {
    /// The memory that the caller has passed.
    Given(Bytes),
    /// A buffer, from which it is read later, with the largest length in bytes.
    Kept(BufferName, u32),
}

impl<Bytes> InputSource<Bytes> {
    /// Converts the bytes of a source to another type.
    pub fn map<Other>(self, called: impl FnOnce(Bytes) -> Other) -> InputSource<Other> {
        match self {
            InputSource::Given(bytes) => InputSource::Given(called(bytes)),
            InputSource::Kept(place) => InputSource::Kept(place),
        }
    }
}

impl<Bytes> OutputSink<Bytes> {
    /// Converts the bytes of a sink to another type.
    pub fn map<Other>(self, called: impl FnOnce(Bytes) -> Other) -> OutputSink<Other> {
        match self {
            OutputSink::Given(bytes) => OutputSink::Given(called(bytes)),
            OutputSink::Kept(place, most_bytes) => OutputSink::Kept(place, most_bytes),
        }
    }
}
