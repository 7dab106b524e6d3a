//! How process 1 sees that a link does its work: a socket that takes connections.

use anyhow::Context as _;
use tokio::net::UnixListener;

use super::entry;
use crate::layout::Layout;

/// From now on, whoever looks sees that the link does its work.
pub(super) fn show_ready(layout: &Layout) -> anyhow::Result<()> {
    let path = layout.link_socket();
    // An earlier process may have left it.
    entry::remove(&path).with_context(|| format!("remove the old {}", path.display()))?;
    let listener =
        UnixListener::bind(&path).with_context(|| format!("listen at {}", path.display()))?;
    tokio::spawn(async move {
        loop {
            // Who connects has its answer.
            if let Err(error) = listener.accept().await {
                tracing::warn!(%error, "nobody can see that the link works");
                tokio::time::sleep(crate::accepting::ACCEPT_PAUSE).await;
            }
        }
    });
    Ok(())
}
