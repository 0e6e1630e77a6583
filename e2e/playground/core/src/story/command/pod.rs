//! `pod`: a pod on a node.

use anyhow::Result;
use futures::future::BoxFuture;

use super::super::Setup;
use super::super::stage::Stage;
use super::super::words::{SyntaxError, Words};
use super::{Command, Syntax};

pub(super) const SYNTAX: Syntax = Syntax {
    forms: &["pod NAME on NODE [with VOLUME, ...]"],
    about: "creates a pod for a node, and those of its volumes that do not exist",
    is_action: true,
    parse,
};

#[derive(Debug)]
struct CreatePod {
    name: String,
    node: usize,
    volumes: Vec<String>,
}

fn parse(words: &mut Words, setup: &mut Setup) -> Result<Box<dyn Command>, SyntaxError> {
    let name = words.name("the name of a pod")?;
    words.expect("on")?;
    let node = words.node(setup)?;
    let volumes = match words.accept("with") {
        true => words.list(|words| words.name("the name of a volume"))?,
        false => Vec::new(),
    };
    Ok(Box::new(CreatePod { name, node, volumes }))
}

impl Command for CreatePod {
    fn run<'a>(&'a self, stage: &'a mut Stage<'_, '_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async {
            let mut volumes = Vec::new();
            for name in &self.volumes {
                volumes.push(stage.volume(name).await?);
            }
            let volumes: Vec<_> = volumes.iter().collect();
            stage.env.pod(&self.name, self.node, &volumes).await
        })
    }
}
