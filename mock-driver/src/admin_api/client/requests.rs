//! The client's functions, made of the table of endpoints.

use serde::Serialize;
use serde_json::Value;

use super::super::endpoints::endpoints;
use super::super::query::*;
use super::super::resource::*;
use super::{Calls as JournalQuery, Calls as WaitQuery, Client, Error};

macro_rules! client {
    ($($of:ident { $($tag:literal { $(
        $(#[$doc:meta])* $vis:vis $method:ident $path:literal $module:ident::$handler:ident $status:literal,
            $name:ident($($part:ident $quoted:literal $about:literal),*)
            $(with $query:ident)? $(sends $body:ident)? $(sets $one:ident { $field:ident: $type:ty })?
            $(text $text:ident $shape:tt)? $(whole $whole:ident $form:tt)? $(-> $reply:ty)? $(as $value:ident $object:ident)?;
    )+ })+ })+) => {
        impl Client {$($($(
            $(#[$doc])*
            $vis async fn $name(
                &self, $($part: &str,)* $(query: &$query,)? $(body: &$body,)? $($field: $type,)?
                $(text: &given!(Value, $text),)? $(text: &given!(Value, $whole),)?
            ) -> Result<reply!($($reply)? $($value)?), Error> {
                let query = given!($(query, $query)?);
                $(let body = &$one { $field };)?
                let body = given!($(body, $body)? $(body, $one)? $(text, $text)? $(text, $whole)?);
                self.request(stringify!($method), $path, &[$($part),*], query, body).await
            }
        )+)+)+}
    };
}

/// The first of two, for each of the second; the query or body of a request without one.
macro_rules! given {
    () => {
        &NoFields {}
    };
    ($given:ident, $each:ident) => {
        $given
    };
}

macro_rules! reply {
    () => {
        ()
    };
    ($reply:ty) => {
        $reply
    };
}

#[derive(Serialize)]
struct NoFields {}

endpoints!(client);
