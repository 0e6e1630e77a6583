//! Serves the embedded API server on loopback and prints a kubeconfig for it.

use std::io::Write as _;

use anyhow::{Context, Result};
use embedded_cluster::apiserver::{ApiServer, Options};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let port = std::env::args().nth(1).unwrap_or_else(|| "0".to_owned());
    let port = port.parse().context("the argument is the port to listen on")?;
    let listener = ApiServer::new(&Options::default()).serve(port).await?;
    std::io::stdout().write_all(listener.kubeconfig().yaml.as_bytes())?;
    std::io::stdout().flush()?;
    listener.run().await;
    Ok(())
}
