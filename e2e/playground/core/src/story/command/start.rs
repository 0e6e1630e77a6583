//! `start`: processes that were killed or stopped, and further attachers.

use anyhow::{Result, ensure};
use futures::future::BoxFuture;

use super::super::Setup;
use super::super::stage::Stage;
use super::super::words::{SyntaxError, Words};
use super::{Command, Syntax};
use csi_e2e::control_plane::Component;
use csi_e2e::scenario::leader::History;

pub(super) const SYNTAX: Syntax = Syntax {
    forms: &["start attacher [NAME]", "start driver", "start api-server"],
    about: "starts what was killed or stopped. With a name: an attacher with leader election; the first one replaces the \
            attacher without a name. `api-server` fails with `--cluster kubeconfig`",
    is_action: true,
    parse,
};

#[derive(Debug)]
enum Start {
    Attacher,
    Replica(String),
    Driver,
    ApiServer,
}

fn parse(words: &mut Words, setup: &mut Setup) -> Result<Box<dyn Command>, SyntaxError> {
    let processes = &["attacher", "driver", "api-server"];
    Ok(Box::new(match words.choice("a process", processes)? {
        "driver" => Start::Driver,
        "api-server" => Start::ApiServer,
        _ if words.end().is_ok() => Start::Attacher,
        _ => {
            setup.has_replicas = true;
            Start::Replica(words.name("the name of an attacher")?)
        }
    }))
}

impl Command for Start {
    fn run<'a>(&'a self, stage: &'a mut Stage<'_, '_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            match self {
                Self::Attacher => {
                    ensure!(stage.is_attacher_dead, "the attacher runs");
                    stage.env.attacher.revive().await?;
                    stage.is_attacher_dead = false;
                }
                Self::Replica(name) => stage.start_replica(name).await?,
                Self::Driver => {
                    ensure!(stage.is_driver_dead, "the driver runs");
                    stage.env.driver.restart().await?;
                    stage.is_driver_dead = false;
                }
                Self::ApiServer => stage.start_api_server().await?,
            }
            Ok(())
        })
    }
}

// === impl Stage ===

impl Stage<'_, '_> {
    async fn start_replica(&mut self, name: &str) -> Result<()> {
        ensure!(!self.replicas.contains_key(name), "attacher {name} runs");
        if self.lease.is_none() {
            self.lease = Some(History::begin(self.env).await?);
        }
        let replica = self.env.replica(self.env.attacher.kind(), name).await?;
        self.replicas.insert(name.to_owned(), replica);
        Ok(())
    }

    pub(in super::super) async fn start_api_server(&mut self) -> Result<()> {
        ensure!(self.is_api_server_down, "the API server runs");
        let cluster = self.env.ctx().cluster();
        cluster.start_component(Component::ApiServer).await?;
        self.is_api_server_down = false;
        Ok(())
    }
}
