package depstmp
import (
 _ "github.com/charmbracelet/lipgloss"
 _ "github.com/itchyny/gojq"
 _ "github.com/olekukonko/tablewriter"
 _ "github.com/rogpeppe/go-internal/testscript"
 _ "github.com/schollz/progressbar/v3"
 _ "github.com/spf13/cobra"
 _ "github.com/spf13/cobra/doc"
 _ "github.com/twmb/franz-go/pkg/kgo"
 _ "github.com/twmb/franz-go/pkg/kadm"
 _ "github.com/twmb/franz-go/pkg/kfake"
 _ "golang.org/x/term"
 _ "golang.org/x/sync/errgroup"
 _ "golang.org/x/sys/unix"
 _ "gopkg.in/yaml.v3"
)
