//! `untaint`: removes a node's taints.

use anyhow::Result;
use futures::future::BoxFuture;

use super::super::Setup;
use super::super::stage::Stage;
use super::super::words::{SyntaxError, Words};
use super::{Command, Syntax};

pub(super) const SYNTAX: Syntax = Syntax {
    forms: &["untaint NODE"],
    about: "removes all taints of a node; the node lifecycle controller restores its own",
    is_action: true,
    parse,
};

#[derive(Debug)]
struct RemoveTaints(usize);

fn parse(words: &mut Words, setup: &mut Setup) -> Result<Box<dyn Command>, SyntaxError> {
    Ok(Box::new(RemoveTaints(words.node(setup)?)))
}

impl Command for RemoveTaints {
    fn run<'a>(&'a self, stage: &'a mut Stage<'_, '_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(stage.env.remove_taints(self.0))
    }
}
