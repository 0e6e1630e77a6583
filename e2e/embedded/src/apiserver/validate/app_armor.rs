//! Validation of AppArmor profiles.

use super::super::app_armor::PATH_LIMIT;
use super::fields::Fields;

const PATH: &str = "localhostProfile";

/// The profile in a security context.
pub(super) fn profile(context: &Fields<'_>) {
    let Some(profile) = context.given("appArmorProfile") else {
        return;
    };
    match profile.text("type") {
        "Localhost" => localhost_profile(&profile),
        "RuntimeDefault" | "Unconfined" if profile.has(PATH) => {
            let why = "can only be set when AppArmor type is Localhost";
            profile.invalid(PATH, profile.text(PATH), why);
        }
        "" => profile.required("type", "type is required when appArmorProfile is set"),
        _ => profile.one_of("type", &["Localhost", "RuntimeDefault", "Unconfined"]),
    }
}

fn localhost_profile(profile: &Fields<'_>) {
    let path = profile.text(PATH);
    if path.trim() != path {
        profile.invalid(PATH, path, "must not be padded with whitespace");
    } else if path.is_empty() {
        profile.required(PATH, "must be set when AppArmor type is Localhost");
    }
    if path.len() > PATH_LIMIT {
        profile.too_long(PATH, PATH_LIMIT);
    }
}
