//! Connections by which agents report. Their end indicates a dead agent earlier than silence does. No lease is then
//! granted on the node until the agent reports again; requests wait for it, and an agent that is started anew there
//! registers at once.

use std::sync::Arc;

use super::{ConnectionId, Shell, State};
use crate::core::{CoreEvent, NodeKey};
use crate::listen::ConnectionSlot;

impl Shell {
    /// Notes that a node's agent has reported by a connection.
    pub(super) fn reports_by(
        self: &Arc<Shell>,
        state: &mut State,
        node: NodeKey,
        place: Option<&ConnectionSlot>,
    ) {
        let Some(place) = place else { return };
        let connection = place.id();
        if state.reporters.insert(node, connection) != Some(connection) {
            let shell = Arc::downgrade(self);
            place.at_end(node, move || {
                if let Some(shell) = shell.upgrade() {
                    shell.disconnected(node, connection);
                }
            });
        }
    }

    fn disconnected(&self, node: NodeKey, connection: ConnectionId) {
        let Ok(mut state) = self.lock() else { return };
        // The agent may report by another connection by now.
        if state.reporters.get(&node) == Some(&connection) {
            state.reporters.remove(&node);
            self.handle(&mut state, CoreEvent::Disconnected(node));
        }
    }
}
