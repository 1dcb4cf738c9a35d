//! What only some catalogs have is refused by name by the others.

use crate::common::{Kind, Place};
use larder_catalog::{Catalog, CatalogError, Feature};

type Ask = fn(&Catalog) -> Result<(), CatalogError>;

const FEATURES: [(Feature, Ask); 12] = [
    (Feature::Transactions, |it| it.transaction().map(drop)),
    (Feature::Rules, |it| it.rules().map(drop)),
    (Feature::Retention, |it| it.retention().map(drop)),
    (Feature::History, |it| it.history().map(drop)),
    (Feature::Past, |it| it.past().map(drop)),
    (Feature::Temporal, |it| it.temporal().map(drop)),
    (Feature::Feed, |it| it.feed().map(drop)),
    (Feature::Sql, |it| it.sql().map(drop)),
    (Feature::Client, |it| it.client().map(drop)),
    (Feature::Workspaces, |it| it.workspace().map(drop)),
    (Feature::ForeignChanges, |it| it.foreign().map(drop)),
    (Feature::Log, |it| it.log().map(drop)),
];

#[test]
fn a_catalog_has_a_feature_or_names_it() {
    let (_place, sqlite) = Place::create(Kind::Sqlite, 0);
    let (_place, memory) = Place::create(Kind::Memory, 0);
    for (feature, ask) in FEATURES {
        ask(&sqlite).unwrap();
        let refused = ask(&memory).unwrap_err();
        assert!(
            matches!(refused, CatalogError::Unsupported { feature: named } if named == feature),
            "INTERFACE-2: {refused}"
        );
        let line = refused.to_string();
        assert!(
            line.contains(feature.as_str()) && !line.contains('\n'),
            "INTERFACE-2: {line}"
        );
    }
}
