// Package migrations holds the history's schema as goose migrations, one
// directory per database. A migration that has been released is never changed, and
// each can be taken back.
//
// Programs of the release before go on working while the schema is already new: a
// release adds (tables, columns with a default, indexes), and only the next one
// takes away what nobody uses any more.
package migrations

import "embed"

// FS holds postgres/*.sql and sqlite/*.sql.
//
//go:embed postgres/*.sql sqlite/*.sql
var FS embed.FS
