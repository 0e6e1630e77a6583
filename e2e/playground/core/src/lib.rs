//! The playground: stories, which narrate their steps and check the results, and the view in which a user injects faults.

pub mod action;
pub mod narrate;
mod observer;
mod pod_mover;
pub mod snapshot;
pub mod story;
pub mod terminal;
mod view;
pub mod web;

use std::time::Duration;

/// Latency of each publish and unpublish at the driver: slow enough to watch.
const LATENCY: Duration = Duration::from_millis(300);

/// What `kubectl csi-attach explain -A` prints of the cluster now, or why it cannot be read.
async fn explain(client: kube::Client) -> String {
    let explained = kubectl_csi_attach::explain_all(client).await;
    explained.unwrap_or_else(|error| error_text(&anyhow::Error::from_boxed(error)))
}

/// Text of an error: each cause once. `{error:#}` repeats the causes that a cause's own text contains, and has the Debug text
/// of Kubernetes' `Status`.
pub fn error_text(error: &anyhow::Error) -> String {
    let mut texts: Vec<String> = Vec::new();
    for cause in error.chain() {
        if let Some(kube::Error::Api(status)) = cause.downcast_ref() {
            let text = match status.message.as_str() {
                "" => &status.reason,
                message => message,
            };
            texts.push(text.to_owned());
            // Its cause is the same status.
            break;
        }
        let text = cause.to_string();
        if !texts.iter().any(|earlier| earlier.contains(&text)) {
            texts.push(text);
        }
    }
    texts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_text_has_each_cause_once() {
        let status = kube::core::Status::failure("namespaces \"round-1\" already exists", "AlreadyExists");
        let error = anyhow::Error::from(kube::Error::Api(status.boxed()))
            .context("create namespace round-1")
            .context("make the scenario's namespace");
        assert_eq!(
            error_text(&error),
            "make the scenario's namespace: create namespace round-1: namespaces \"round-1\" already exists"
        );
        let refused = std::io::Error::other("connection refused");
        let error = anyhow::Error::from(kube::Error::ReadEvents(refused)).context("read the pod");
        assert_eq!(
            error_text(&error),
            "read the pod: Error reading events stream: connection refused"
        );
    }
}
