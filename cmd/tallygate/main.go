// Command tallygate is for people: it runs the whole pipeline in one process,
// generates load, and checks configurations.
package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/tallygate/tallygate/internal/config"
	"github.com/tallygate/tallygate/internal/credential"
	"github.com/tallygate/tallygate/internal/load"
	"github.com/tallygate/tallygate/internal/service"
)

func main() { service.Main(run) }

func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	root := &cobra.Command{Use: "tallygate", Short: "Enforce API quotas and keep an exact account of who used what"}
	root.AddCommand(devCommand(getenv), load.Command(getenv), configCommand(getenv), credentialCommand())
	return service.Execute(ctx, root, args, stdout, stderr)
}

// configCommand checks a configuration and prints what would hold.
func configCommand(getenv func(string) string) *cobra.Command {
	var path string
	command := &cobra.Command{
		Use: "config", Short: "Check the configuration and print the effective one, secrets masked", Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			c, err := config.Load(path, getenv)
			if err != nil {
				return err
			}
			return c.Print(command.OutOrStdout())
		},
	}
	service.ConfigFlag(command, &path, getenv)
	return command
}

// credentialCommand makes a bearer token for the admin API.
func credentialCommand() *cobra.Command {
	return &cobra.Command{
		Use: "credential", Short: "Make a bearer token for the admin API, and the digest that the configuration holds", Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			token, digest := credential.Generate()
			_, err := fmt.Fprintf(command.OutOrStdout(), "token   %s   (shown only now: keep it safe)\nsha256  %s   (goes into admin.credentials)\n", token, digest)
			return err
		},
	}
}
