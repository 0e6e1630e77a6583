//! `recover`: a lost node.

use anyhow::Result;
use futures::future::BoxFuture;

use super::super::Setup;
use super::super::stage::Stage;
use super::super::words::{SyntaxError, Words};
use super::{Command, Syntax};

pub(super) const SYNTAX: Syntax = Syntax {
    forms: &["recover node NODE"],
    about: "starts a lost node's kubelet, with the mounts that the node had",
    is_action: true,
    parse,
};

#[derive(Debug)]
struct RecoverNode(usize);

fn parse(words: &mut Words, setup: &mut Setup) -> Result<Box<dyn Command>, SyntaxError> {
    words.expect("node")?;
    Ok(Box::new(RecoverNode(words.node(setup)?)))
}

impl Command for RecoverNode {
    fn run<'a>(&'a self, stage: &'a mut Stage<'_, '_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async { stage.env.recover_node(self.0) })
    }
}
