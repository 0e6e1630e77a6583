//! `kill`: SIGKILL.

use anyhow::{Context, Result};
use futures::future::BoxFuture;

use super::super::Setup;
use super::super::stage::Stage;
use super::super::words::{SyntaxError, Words};
use super::{Command, Syntax};

pub(super) const SYNTAX: Syntax = Syntax {
    forms: &["kill attacher [NAME]", "kill driver"],
    about: "kills a process by SIGKILL; it stays dead until `start`",
    is_action: true,
    parse,
};

#[derive(Debug)]
enum Kill {
    Attacher,
    Replica(String),
    Driver,
}

fn parse(words: &mut Words, _: &mut Setup) -> Result<Box<dyn Command>, SyntaxError> {
    Ok(Box::new(
        match words.choice("a process", &["attacher", "driver"])? {
            "driver" => Kill::Driver,
            _ if words.end().is_ok() => Kill::Attacher,
            _ => Kill::Replica(words.name("the name of an attacher")?),
        },
    ))
}

impl Command for Kill {
    fn run<'a>(&'a self, stage: &'a mut Stage<'_, '_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            match self {
                Self::Attacher => {
                    stage.env.attacher.crash().await?;
                    stage.is_attacher_dead = true;
                }
                Self::Replica(name) => {
                    let replica = stage.replicas.remove(name);
                    let mut replica = replica.with_context(|| format!("attacher {name} does not run"))?;
                    replica.crash().await?;
                }
                Self::Driver => {
                    stage.env.driver.kill().await?;
                    stage.is_driver_dead = true;
                }
            }
            Ok(())
        })
    }
}
