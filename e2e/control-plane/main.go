// Command control-plane is etcd and the Kubernetes control plane in one executable.
//
// The four programs share most of their code, so linking them once is far quicker to build and
// smaller to keep than four binaries. Which program runs is decided as busybox does it: by the
// name the executable is called by, or else by its first argument.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client-go's metrics on /metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info on /metrics

	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/pkg/controller/volume/attachdetach"
)

// timers maps the name of an environment variable to the timers of the attach/detach controller
// that it sets. The controller has no flags for them, and its minutes are too long for a test.
var timers = map[string]func(time.Duration){
	"ATTACH_DETACH_MAX_WAIT_FOR_UNMOUNT": func(duration time.Duration) {
		attachdetach.DefaultTimerConfig.ReconcilerMaxWaitForUnmountDuration = duration
	},
	"ATTACH_DETACH_POPULATOR_PERIOD": func(duration time.Duration) {
		attachdetach.DefaultTimerConfig.DesiredStateOfWorldPopulatorLoopSleepPeriod = duration
		attachdetach.DefaultTimerConfig.DesiredStateOfWorldPopulatorListPodsRetryDuration = duration
	},
}

// programs maps a program's name to its entry point, which is given the arguments with the
// program's own name in front and never returns on success.
var programs = map[string]func(argv []string){
	"etcd":                    etcdmain.Main,
	"etcd-snapshot":           etcdSnapshot,
	"kube-apiserver":          kubernetes(func() *cobra.Command { return apiserver.NewAPIServerCommand() }),
	"kube-controller-manager": kubernetes(func() *cobra.Command { return controllermanager.NewControllerManagerCommand() }),
	"kube-scheduler":          kubernetes(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
}

func main() {
	for variable, set := range timers {
		text := os.Getenv(variable)
		if text == "" {
			continue
		}
		duration, err := time.ParseDuration(text)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", variable, err)
			os.Exit(2)
		}
		set(duration)
	}
	if run, ok := programs[filepath.Base(os.Args[0])]; ok {
		run(os.Args)
		return
	}
	if len(os.Args) > 1 {
		if run, ok := programs[os.Args[1]]; ok {
			run(os.Args[1:])
			return
		}
	}
	names := make([]string, 0, len(programs))
	for name := range programs {
		names = append(names, name)
	}
	slices.Sort(names)
	fmt.Fprintf(os.Stderr, "usage: %s %s [flag...]\n", filepath.Base(os.Args[0]), strings.Join(names, "|"))
	os.Exit(2)
}

// kubernetes adapts a Kubernetes command. The command is made only when it is asked for, because
// making one registers flags and feature gates that the other programs must not see.
func kubernetes(command func() *cobra.Command) func([]string) {
	return func(argv []string) {
		// cobra, klog and the user agent that shows up in managedFields all look at os.Args.
		os.Args = argv
		os.Exit(cli.Run(command()))
	}
}
