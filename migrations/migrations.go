// Package migrations holds the history's schema as goose migrations, one
// directory per database. A migration that has been released is never changed.
package migrations

import "embed"

// FS holds postgres/*.sql and sqlite/*.sql.
//
//go:embed postgres/*.sql sqlite/*.sql
var FS embed.FS
