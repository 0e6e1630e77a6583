//! `pods`: many pods at once.

use anyhow::Result;
use futures::future::BoxFuture;

use super::super::Setup;
use super::super::stage::Stage;
use super::super::words::{SyntaxError, Words};
use super::{Command, Syntax};

pub(super) const SYNTAX: Syntax = Syntax {
    forms: &["pods NAME N on NODE, ..."],
    about: "creates pods NAME-0, NAME-1 and so on, for the nodes in turn, each with a volume of the pod's name",
    is_action: true,
    parse,
};

/// The most pods of one command.
const MAX_PODS: usize = 200;

#[derive(Debug)]
struct CreatePods {
    name: String,
    count: usize,
    nodes: Vec<usize>,
}

fn parse(words: &mut Words, setup: &mut Setup) -> Result<Box<dyn Command>, SyntaxError> {
    let name = words.name("the name of the pods")?;
    let count = words.number(MAX_PODS)?;
    words.expect("on")?;
    let nodes = words.list(|words| words.node(setup))?;
    Ok(Box::new(CreatePods { name, count, nodes }))
}

impl Command for CreatePods {
    fn run<'a>(&'a self, stage: &'a mut Stage<'_, '_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async {
            let mut volumes = Vec::new();
            for index in 0..self.count {
                volumes.push(stage.volume(&format!("{}-{index}", self.name)).await?);
            }
            for (index, volume) in volumes.iter().enumerate() {
                let node = self.nodes[index % self.nodes.len()];
                stage
                    .env
                    .pod(&format!("{}-{index}", self.name), node, &[volume])
                    .await?;
            }
            stage.groups.insert(self.name.clone(), self.count);
            Ok(())
        })
    }
}
