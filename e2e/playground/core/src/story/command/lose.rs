//! `lose`: a node.

use anyhow::Result;
use futures::future::BoxFuture;

use super::super::Setup;
use super::super::stage::Stage;
use super::super::words::{SyntaxError, Words};
use super::{Command, Syntax};

pub(super) const SYNTAX: Syntax = Syntax {
    forms: &["lose node NODE"],
    about: "the node's kubelet stops without a shutdown: its volumes stay mounted, and it reports nothing",
    is_action: true,
    parse,
};

#[derive(Debug)]
struct LoseNode(usize);

fn parse(words: &mut Words, setup: &mut Setup) -> Result<Box<dyn Command>, SyntaxError> {
    words.expect("node")?;
    Ok(Box::new(LoseNode(words.node(setup)?)))
}

impl Command for LoseNode {
    fn run<'a>(&'a self, stage: &'a mut Stage<'_, '_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(stage.env.lose_node(self.0))
    }
}
