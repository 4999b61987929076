package dashboard

import (
	"log/slog"

	"github.com/tallygate/tallygate/internal/config"
)

// FromConfig returns the options that a service's configuration chooses.
func FromConfig(c *config.Config, h History, log *slog.Logger) Options {
	o := Options{
		History: h, Log: log, Open: c.Indexer.Dashboard.Open,
		Policies: func() Policies { return Policies{c.DefaultPolicy, c.Policies} },
	}
	for _, k := range c.Indexer.Dashboard.Credentials {
		o.Credentials = append(o.Credentials, Credential{Name: k.Name, Role: Role(k.Role), SHA256: k.SHA256})
	}
	return o
}
