//! `taint`: what an administrator says about a node.

use anyhow::Result;
use futures::future::BoxFuture;

use super::super::Setup;
use super::super::stage::Stage;
use super::super::words::{SyntaxError, Words};
use super::{Command, Syntax};

pub(super) const SYNTAX: Syntax = Syntax {
    forms: &["taint NODE out-of-service"],
    about: "adds the taint node.kubernetes.io/out-of-service: volumes may be detached from the node although they were not unmounted",
    is_action: true,
    parse,
};

#[derive(Debug)]
struct OutOfService(usize);

fn parse(words: &mut Words, setup: &mut Setup) -> Result<Box<dyn Command>, SyntaxError> {
    let node = words.node(setup)?;
    words.expect("out-of-service")?;
    Ok(Box::new(OutOfService(node)))
}

impl Command for OutOfService {
    fn run<'a>(&'a self, stage: &'a mut Stage<'_, '_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async {
            stage.allow_force_detach(self.0);
            stage.env.set_out_of_service(self.0, true).await
        })
    }
}
