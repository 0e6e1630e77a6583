//! `stop`: SIGTERM, and the API server.

use anyhow::{Context, Result};
use futures::future::BoxFuture;

use super::super::Setup;
use super::super::stage::Stage;
use super::super::words::{SyntaxError, Words};
use super::{Command, Syntax};
use csi_e2e::control_plane::Component;

pub(super) const SYNTAX: Syntax = Syntax {
    forms: &["stop attacher NAME", "stop api-server"],
    about: "sends SIGTERM to an attacher that `start attacher NAME` has started, or makes the API server unreachable, which \
            fails with `--cluster kubeconfig`",
    is_action: true,
    parse,
};

#[derive(Debug)]
enum Stop {
    Replica(String),
    ApiServer,
}

fn parse(words: &mut Words, _: &mut Setup) -> Result<Box<dyn Command>, SyntaxError> {
    Ok(Box::new(
        match words.choice("a process", &["attacher", "api-server"])? {
            "api-server" => Stop::ApiServer,
            _ => Stop::Replica(words.name("the name of an attacher")?),
        },
    ))
}

impl Command for Stop {
    fn run<'a>(&'a self, stage: &'a mut Stage<'_, '_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            match self {
                Self::Replica(name) => {
                    let replica = stage.replicas.remove(name);
                    let mut replica = replica.with_context(|| format!("attacher {name} does not run"))?;
                    replica.stop().await
                }
                Self::ApiServer => {
                    let cluster = stage.env.ctx().cluster();
                    cluster.kill_component(Component::ApiServer).await?;
                    stage.is_api_server_down = true;
                    Ok(())
                }
            }
        })
    }
}
