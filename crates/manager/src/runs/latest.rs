//! Finds the latest runs of a graph, from which further runs are planned.

use sublet_proto::v1::RunInfo;
use sublet_proto::{Error, decode};

use super::StoreRuns;
use crate::store::{Store, keys};

/// Pages, and records of a page, in which the latest runs of a graph are searched.
const LATEST_PAGES: usize = 4;
const LATEST_RECORDS: usize = 64;

impl StoreRuns {
    /// Returns the latest runs of a graph's version that succeeded, the newest first, out of the tenant's latest 256 runs.
    pub(crate) async fn succeeded(
        &self,
        tenant: &str,
        digest: &str,
        limit: usize,
    ) -> Result<Vec<RunInfo>, Error> {
        let (prefix, digest) = (format!("{}{tenant}/", keys::RUN), digest.to_owned());
        let read = move |store: &mut dyn Store| {
            let (mut runs, mut before) = (Vec::new(), None::<String>);
            for _ in 0..LATEST_PAGES {
                let page = store.scan_back(&prefix, before.as_deref(), LATEST_RECORDS)?;
                let Some(last) = page.last() else { break };
                before = Some(last.key.clone());
                for record in &page {
                    let info: RunInfo = decode("a stored run", &record.value)?;
                    if info.digest == digest && info.ended_unix_ms != 0 && info.code == 0 {
                        runs.push(info);
                    }
                    if runs.len() == limit {
                        return Ok(runs);
                    }
                }
            }
            Ok(runs)
        };
        self.database.with(read).await
    }
}
