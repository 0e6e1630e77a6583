//! `register` and `unregister`: the driver's entry in a CSINode.

use anyhow::Result;
use futures::future::BoxFuture;

use super::super::Setup;
use super::super::stage::Stage;
use super::super::words::{SyntaxError, Words};
use super::{Command, Syntax};

pub(super) const REGISTER: Syntax = Syntax {
    forms: &["register driver on NODE"],
    about: "adds the driver to the node's CSINode again, as kubelet does when the driver's pod on the node is ready",
    is_action: true,
    parse: |words, setup| parse(words, setup, true),
};
pub(super) const UNREGISTER: Syntax = Syntax {
    forms: &["unregister driver on NODE"],
    about: "removes the driver from the node's CSINode, as kubelet does while the driver's pod on the node is away",
    is_action: true,
    parse: |words, setup| parse(words, setup, false),
};

#[derive(Debug)]
struct Register {
    node: usize,
    is_registered: bool,
}

fn parse(words: &mut Words, setup: &mut Setup, is_registered: bool) -> Result<Box<dyn Command>, SyntaxError> {
    words.expect("driver on")?;
    let node = words.node(setup)?;
    Ok(Box::new(Register { node, is_registered }))
}

impl Command for Register {
    fn run<'a>(&'a self, stage: &'a mut Stage<'_, '_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async {
            let node = stage.env.node(self.node);
            match self.is_registered {
                true => node.reregister(node.node_id()).await,
                false => node.unregister().await,
            }
        })
    }
}
