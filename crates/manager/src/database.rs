//! The store as tasks use it: on threads that may block, a bounded number at a time.
//!
//! No task waits for the disk on a thread that serves requests, and none waits for ever: a task that gets no turn in
//! time gets the error that the store does not answer. Changes that have to outlive the machine are written through to
//! the disk before they are acknowledged, many together, while others use the store.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sublet_proto::{Code, Error};
use tokio::sync::Semaphore;

use crate::store::{PAGE_RECORDS, Reserve, Store, StoreRecord};

/// Uses of the store that hold a thread at the same time.
const MAX_THREADS: usize = 8;
/// Time for which a use waits for its turn.
const TURN: Duration = Duration::from_secs(10);

/// A store that tasks share.
#[derive(Clone)]
pub(crate) struct Database {
    store: Arc<Mutex<Box<dyn Store>>>,
    turns: Arc<Semaphore>,
}

impl Database {
    pub(crate) fn new(store: Box<dyn Store>) -> Database {
        Database { store: Arc::new(Mutex::new(store)), turns: Arc::new(Semaphore::new(MAX_THREADS)) }
    }

    /// Uses the store on a thread that may block. Changes may use the reserved part of the disk.
    ///
    /// # Errors
    /// Errors of `act`, and `store_unreachable` if it got no turn in time.
    pub(crate) async fn with<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut dyn Store) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.run(Reserve::Used, act).await
    }

    /// Uses the store as [`Database::with`] does, for data that users may store without limit: changes leave the
    /// reserve free.
    ///
    /// # Errors
    /// As [`Database::with`], and `store_full` once only the reserve is left.
    pub(crate) async fn keeping_reserve<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut dyn Store) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.run(Reserve::Kept, act).await
    }

    /// Shows the records of a prefix behind a key, page by page: other tasks use the store in between. Ends early if
    /// `see` says so.
    ///
    /// # Errors
    /// As [`Database::with`], and errors of `see`.
    pub(crate) async fn each_page(
        &self,
        prefix: &'static str,
        mut after: Option<String>,
        mut see: impl FnMut(&[StoreRecord]) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        loop {
            let behind = after.take();
            let page = self.with(move |store| store.scan(prefix, behind.as_deref(), PAGE_RECORDS)).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.key.clone());
            if see(&page)?.is_break() {
                return Ok(());
            }
        }
    }

    async fn run<T: Send + 'static>(
        &self,
        reserve: Reserve,
        act: impl FnOnce(&mut dyn Store) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let turn = tokio::time::timeout(TURN, Arc::clone(&self.turns).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else {
            let message = format!("the store has not come to it within {} s", TURN.as_secs());
            return Err(Error::new(Code::StoreUnreachable, message));
        };
        let store = Arc::clone(&self.store);
        blocking(move || {
            let _turn = turn;
            let mut store = store
                .lock()
                .map_err(|_| Error::new(Code::Internal, "the store has failed before and serves no more"))?;
            store.set_reserve(reserve);
            let done = act(&mut **store)?;
            let unsynced = store.unsynced();
            drop(store);
            unsynced.map_or(Ok(()), |sync| sync.sync())?;
            Ok(done)
        })
        .await
    }
}

/// Runs a long operation on a thread of its own.
pub(crate) async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(act).await {
        Ok(result) => result,
        Err(error) => Err(Error::new(Code::Internal, format!("the manager failed: {error}"))),
    }
}
