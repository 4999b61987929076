package admin

import (
	"log/slog"
	"time"

	"github.com/tallygate/tallygate/internal/conf"
	"github.com/tallygate/tallygate/internal/config"
	"github.com/tallygate/tallygate/internal/credential"
	"github.com/tallygate/tallygate/internal/enforcer"
	"github.com/tallygate/tallygate/internal/service"
)

// Parts returns the parts that serve the API as configured: none without credentials.
func Parts(c *config.Config, s *service.Service, settings conf.Store, e *enforcer.Enforcer) ([]service.Part, error) {
	credentials, err := credential.New(c.Admin.Credentials)
	if err != nil || credentials.Empty() {
		return nil, err
	}
	l, err := service.Listen(c.Admin.Listen, "admin.listen")
	if err != nil {
		return nil, err
	}
	api := &API{Credentials: credentials, Settings: settings, Enforcer: e, Log: s.Log, Now: time.Now}
	s.Log.Info("serving the admin API", slog.String("address", l.Addr().String()))
	return []service.Part{s.Serve("admin", l, api.Handler(), c.Enforcer.DrainTimeout)}, nil
}
