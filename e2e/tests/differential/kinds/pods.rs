//! Pods.

use serde_json::json;

use super::{Kind, Row, kind};

/// Fields of the spec and of the status.
const ROWS: &[Row] = &[
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i"}],[{"name":"c","image":"j"}],[{"name":"c","image":"i:v1","resources":{"requests":{"cpu":"100m","memory":"1Gi"}}}],[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/data"}]},{"name":"d","image":"i:latest","imagePullPolicy":"Never"}],[{"name":"c","image":"i","env":[{"name":"A","value":"b"}],"ports":[{"containerPort":80}]}]]"#,
        r#"[[],null,[{"name":"","image":"i"}],[{"name":"c"}],[{"name":"c","image":" i"}],[{"name":"c","image":"i"},{"name":"c","image":"i"}],[{"name":"Not Valid","image":"i"}],[{"name":"c","image":"i","imagePullPolicy":"Often"}],[{"name":"c","image":"i","volumeMounts":[{"name":"missing","mountPath":"/x"}]}],[{"name":"c","image":"i","volumeDevices":[{"name":"v","devicePath":"/x"}]}],[{"name":"c","image":"i","ports":[{"containerPort":0}]}],[{"name":"c","image":"i","ports":[{"containerPort":80,"protocol":"X"}]}],[{"name":"c","image":"i","env":[{"name":""}]}],[{"name":"c","image":"i","resources":{"requests":{"cpu":"2"},"limits":{"cpu":"1"}}}],[{"name":"c","image":"i","resources":{"requests":{"storage":"2"}}}],[{"name":"c","image":7}],{}]"#,
    ),
    // lifecycle
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","lifecycle":{"postStart":{"exec":{"command":["a"]}}}}],[{"name":"c","image":"i","lifecycle":{"preStop":{"httpGet":{"port":80}}}}],[{"name":"c","image":"i","lifecycle":{"postStart":{"tcpSocket":{"port":"http"}}}}],[{"name":"c","image":"i","lifecycle":{"postStart":{"sleep":{"seconds":1}}}}],[{"name":"c","image":"i","lifecycle":{"preStop":{"sleep":{"seconds":0}}}}]]"#,
        r#"[[{"name":"c","image":"i","lifecycle":{"postStart":{}}}],[{"name":"c","image":"i","lifecycle":{"postStart":{"exec":{}}}}],[{"name":"c","image":"i","lifecycle":{"postStart":{"httpGet":{"port":0}}}}],[{"name":"c","image":"i","lifecycle":{"postStart":{"httpGet":{"port":"a--b"}}}}],[{"name":"c","image":"i","lifecycle":{"postStart":{"httpGet":{"port":80,"scheme":"FTP","httpHeaders":[{"name":"a b","value":"c"}]}}}}],[{"name":"c","image":"i","lifecycle":{"postStart":{"tcpSocket":{"port":70000}}}}],[{"name":"c","image":"i","lifecycle":{"postStart":{"sleep":{"seconds":-1}}}}],[{"name":"c","image":"i","lifecycle":{"postStart":{"sleep":{"seconds":9999}}}}],[{"name":"c","image":"i","lifecycle":{"preStop":{"exec":{"command":["a"]},"sleep":{"seconds":1}}}}]]"#,
    ),
    // env
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['a']"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"resourceFieldRef":{"resource":"limits.cpu","divisor":"1m"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"resourceFieldRef":{"resource":"limits.cpu"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"secretKeyRef":{"name":"a","key":"k"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"configMapKeyRef":{"name":"a","key":"k","optional":true}}}]}],[{"name":"c","image":"i","env":[{"name":"1 a","value":"b"}]}]]"#,
        r#"[[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"fieldRef":{}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"spec.x"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"status.phase"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"spec.nodeName['a']"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['a b']"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"fieldRef":{"apiVersion":"v2","fieldPath":"metadata.name"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"resourceFieldRef":{"resource":"limits.x"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"resourceFieldRef":{"resource":"requests.memory","divisor":"3"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"secretKeyRef":{"name":"a"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"secretKeyRef":{"name":"Not_Valid","key":"a b"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"configMapKeyRef":{"key":"k"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"},"secretKeyRef":{"name":"a","key":"k"}}}]}],[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}},"value":"x"}]}],[{"name":"c","image":"i","env":[{"name":"a=b","value":"c"}]}]]"#,
    ),
    // fileKeyRef
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"fileKeyRef":{"volumeName":"v","path":"p","key":"k"}}}]}]]"#,
        r#"[[{"name":"c","image":"i","env":[{"name":"A","valueFrom":{"fileKeyRef":{"volumeName":"missing","path":"../p","key":""}}}]}]]"#,
    ),
    // ports
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","ports":[{"name":"http","containerPort":80,"hostPort":8080}]}],[{"name":"c","image":"i","ports":[{"containerPort":80,"hostPort":1},{"containerPort":81,"hostPort":1,"protocol":"UDP"}]}]]"#,
        r#"[[{"name":"c","image":"i","ports":[{"name":"Http","containerPort":80}]}],[{"name":"c","image":"i","ports":[{"name":"a--b","containerPort":80}]}],[{"name":"c","image":"i","ports":[{"name":"123","containerPort":80}]}],[{"name":"c","image":"i","ports":[{"name":"-longer-than-fifteen","containerPort":80}]}],[{"name":"c","image":"i","ports":[{"name":"a","containerPort":80},{"name":"a","containerPort":81}]}],[{"name":"c","image":"i","ports":[{"containerPort":80,"hostPort":1},{"containerPort":81,"hostPort":1}]}]]"#,
    ),
    // subPath
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/d","subPath":"a/b"}]}],[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/d","subPathExpr":"$(A)"}]}]]"#,
        r#"[[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/d","subPath":"/a"}]}],[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/d","subPath":"a/../b"}]}],[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/d","subPathExpr":"/../a"}]}],[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/d","subPath":"a","subPathExpr":"b"}]}]]"#,
    ),
    // mountPropagation
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/d","mountPropagation":"HostToContainer"}]}],[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/d","readOnly":true,"recursiveReadOnly":"IfPossible"}]}],[{"name":"c","image":"i","securityContext":{"privileged":true},"volumeMounts":[{"name":"v","mountPath":"/d","mountPropagation":"Bidirectional"}]}]]"#,
        r#"[[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/d","mountPropagation":"Bidirectional"}]}],[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/d","mountPropagation":"Both"}]}],[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/d","recursiveReadOnly":"Enabled"}]}],[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/d","recursiveReadOnly":"Maybe"}]}],[{"name":"c","image":"i","volumeMounts":[{"name":"v","mountPath":"/d","readOnly":true,"recursiveReadOnly":"Enabled","mountPropagation":"HostToContainer"}]}]]"#,
    ),
    // probes
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","livenessProbe":{"exec":{"command":["a"]}}}],[{"name":"c","image":"i","readinessProbe":{"httpGet":{"port":"http"},"successThreshold":2}}],[{"name":"c","image":"i","startupProbe":{"tcpSocket":{"port":80},"periodSeconds":5}}],[{"name":"c","image":"i","livenessProbe":{"grpc":{"port":80},"terminationGracePeriodSeconds":5}}]]"#,
        r#"[[{"name":"c","image":"i","livenessProbe":{}}],[{"name":"c","image":"i","livenessProbe":{"exec":{}}}],[{"name":"c","image":"i","livenessProbe":{"exec":{"command":["a"]},"grpc":{"port":0}}}],[{"name":"c","image":"i","readinessProbe":{"httpGet":{"port":0,"scheme":"FTP"},"failureThreshold":-1}}],[{"name":"c","image":"i","startupProbe":{"tcpSocket":{"port":"a--b"},"successThreshold":2}}],[{"name":"c","image":"i","readinessProbe":{"grpc":{"port":70000},"terminationGracePeriodSeconds":0}}],[{"name":"c","image":"i","livenessProbe":{"exec":{"command":["a"]},"initialDelaySeconds":-1,"timeoutSeconds":-1,"periodSeconds":-1,"successThreshold":-1}}]]"#,
    ),
    // securityContext
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","securityContext":{"runAsUser":1,"runAsGroup":1,"allowPrivilegeEscalation":false}}],[{"name":"c","image":"i","securityContext":{"capabilities":{"add":["NET_ADMIN"],"drop":["ALL"]}}}]]"#,
        r#"[[{"name":"c","image":"i","securityContext":{"runAsUser":-1,"runAsGroup":2147483648}}],[{"name":"c","image":"i","securityContext":{"allowPrivilegeEscalation":false,"privileged":true}}],[{"name":"c","image":"i","securityContext":{"allowPrivilegeEscalation":false,"capabilities":{"add":["CAP_SYS_ADMIN"]}}}],[{"name":"c","image":"i","securityContext":{"procMount":"Other"}}],[{"name":"c","image":"i","securityContext":{"seccompProfile":{"type":"Localhost"}}}],[{"name":"c","image":"i","securityContext":{"seccompProfile":{"type":"Other","localhostProfile":"x"}}}]]"#,
    ),
    // resources
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","resources":{"limits":{"cpu":"1","hugepages-2Mi":"4Mi"}}}],[{"name":"c","image":"i","resources":{"limits":{"example.com/a":"2"}}}]]"#,
        r#"[[{"name":"c","image":"i","resources":{"limits":{"disk":"1"}}}],[{"name":"c","image":"i","resources":{"requests":{"example.com/a":"1"}}}],[{"name":"c","image":"i","resources":{"requests":{"example.com/a":"1"},"limits":{"example.com/a":"2"}}}],[{"name":"c","image":"i","resources":{"limits":{"hugepages-2Mi":"1Mi"}}}],[{"name":"c","image":"i","resources":{"limits":{"requests.example.com/a":"1"}}}],[{"name":"c","image":"i","resources":{"claims":[{"name":"r"},{"name":"r"},{"name":""},{"name":"s","request":"a"},{"name":"s","request":"a"},{"name":"s"}]}}]]"#,
    ),
    // appArmorProfile
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","securityContext":{"appArmorProfile":{"type":"Unconfined"}}}],[{"name":"c","image":"i","securityContext":{"appArmorProfile":{"type":"Localhost","localhostProfile":"p"}}}]]"#,
        r#"[[{"name":"c","image":"i","securityContext":{"appArmorProfile":{"type":"Localhost","localhostProfile":""}}}],[{"name":"c","image":"i","securityContext":{"appArmorProfile":{"type":"Unconfined","localhostProfile":""}}}]]"#,
    ),
    // windowsOptions
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","securityContext":{"windowsOptions":{"runAsUserName":"u"}}}]]"#,
        r#"[[{"name":"c","image":"i","securityContext":{"windowsOptions":{"hostProcess":true}}}],[{"name":"c","image":"i","securityContext":{"windowsOptions":{"hostProcess":true}}},{"name":"d","image":"i"}],[{"name":"c","image":"i","securityContext":{"windowsOptions":{"runAsUserName":""}}}]]"#,
    ),
    // stopSignal and restartPolicy
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","lifecycle":{"stopSignal":"SIGUSR1"}}],[{"name":"c","image":"i","lifecycle":{"preStop":{"sleep":{"seconds":1}},"stopSignal":"SIGNONE"}}],[{"name":"c","image":"i","restartPolicy":"Never","restartPolicyRules":[{"action":"Restart","exitCodes":{"operator":"In","values":[1,0]}},{"action":"RestartAllContainers","exitCodes":{"operator":"NotIn","values":[2]}}]}]]"#,
        r#"[[{"name":"c","image":"i","restartPolicy":"Sometimes"}],[{"name":"c","image":"i","restartPolicy":""}],[{"name":"c","image":"i","restartPolicyRules":[{"action":"Stop","exitCodes":{"operator":"Is"}}]}],[{"name":"c","image":"i","restartPolicy":"Always","restartPolicyRules":[{"action":"Restart"},{}]}],[{"name":"c","image":"i","restartPolicy":"Always","restartPolicyRules":[{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}]}],[{"name":"c","image":"i","restartPolicyRules":{}}]]"#,
    ),
    // resizePolicy
    (
        "/spec/containers",
        r#"[[{"name":"c","image":"i","resizePolicy":[{"resourceName":"cpu","restartPolicy":"NotRequired"}]}],[{"name":"c","image":"i","resizePolicy":[{"resourceName":"memory","restartPolicy":"RestartContainer"},{"resourceName":"cpu","restartPolicy":"NotRequired"}]}]]"#,
        r#"[[{"name":"c","image":"i","resizePolicy":[{"resourceName":"cpu","restartPolicy":"NotRequired"},{"resourceName":"cpu","restartPolicy":"RestartContainer"}]}],[{"name":"c","image":"i","resizePolicy":[{"resourceName":"disk","restartPolicy":"Never"}]}],[{"name":"c","image":"i","resizePolicy":[{}]}]]"#,
    ),
    // initContainers
    (
        "/spec/initContainers",
        r#"[[{"name":"x","image":"i","restartPolicy":"OnFailure","restartPolicyRules":[{"action":"Restart","exitCodes":{"operator":"In","values":[1]}}],"resizePolicy":[{"resourceName":"cpu","restartPolicy":"NotRequired"}]}]]"#,
        r#"[[{"name":"x","image":"i","restartPolicy":"Sometimes"}],[{"name":"x","image":"i","restartPolicyRules":[{"action":"Stop"}]}],[{"name":"x","image":"i","resizePolicy":[{"resourceName":"cpu","restartPolicy":"RestartContainer"}]}],[{"name":"c","image":"i","restartPolicy":"Always","restartPolicyRules":[{"action":"Stop"}],"lifecycle":{"stopSignal":"SIGUSR1"}}]]"#,
    ),
    (
        "/spec/initContainers",
        r#"[[{"name":"x","image":"i"}],[{"name":"x","image":"i","lifecycle":{"preStop":{"sleep":{"seconds":1}}},"restartPolicy":"Always"}]]"#,
        r#"[[{"name":"c","image":"i"}],[{"name":"x","image":"i","lifecycle":{"preStop":{"sleep":{"seconds":1}}}}],[{"name":"x","image":"i","readinessProbe":{"tcpSocket":{"port":80}}}],[{"name":"x","image":"i"},{"name":"y","image":"i","ports":[{"containerPort":1,"hostPort":1},{"containerPort":2,"hostPort":1}]}]]"#,
    ),
    (
        "/spec/volumes",
        r#"[[{"name":"v","persistentVolumeClaim":{"claimName":"a"}}],[{"name":"v","emptyDir":{}}],[{"name":"v","csi":{"driver":"csi.example.com"}},{"name":"w","secret":{"secretName":"a"}}],[{"name":"v"}],[{"name":"v","ephemeral":{"volumeClaimTemplate":{"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}}}],[{"name":"v","hostPath":{"path":"/x"}}],[]]"#,
        r#"[[{"name":""}],[{"name":"v","persistentVolumeClaim":{"claimName":""}}],[{"name":"v","emptyDir":{}},{"name":"v","emptyDir":{}}],[{"name":"v","emptyDir":{},"hostPath":{"path":"/x"}}],[{"name":"v","csi":{"driver":""}}],[{"name":"Not Valid","emptyDir":{}}],[{"name":"v","ephemeral":{}}],[{"name":"v","ephemeral":{"volumeClaimTemplate":{"spec":{"accessModes":[]}}}}],[{"name":"v","secret":{}}],[{"name":"v","hostPath":{"path":"/x","type":"Thing"}}],[{"name":"v","emptyDir":{"sizeLimit":"-1"}}],"v"]"#,
    ),
    // image
    (
        "/spec/volumes",
        r#"[[{"name":"v","image":{"reference":"i"}}],[{"name":"v","image":{"reference":"i:v1","pullPolicy":"Never"}}]]"#,
        r#"[[{"name":"v","image":{}}],[{"name":"v","image":{"reference":"i","pullPolicy":"Often"}}],[{"name":"v","emptyDir":{},"image":{"reference":"i"}}]]"#,
    ),
    ("/spec/nodeName", r#"["a","b"]"#, r#"["Not_Valid",7]"#),
    (
        "/spec/nodeSelector",
        r#"[{"zone":"z1"},{}]"#,
        r#"[{"zone":"not valid"},{"-":"x"},[]]"#,
    ),
    (
        "/spec/restartPolicy",
        r#"["Always","Never","OnFailure"]"#,
        r#"["Sometimes",""]"#,
    ),
    ("/spec/terminationGracePeriodSeconds", "[0,30,5]", r#"[-1,"5"]"#),
    ("/spec/activeDeadlineSeconds", "[10,20]", r#"[0,-1,"x"]"#),
    (
        "/spec/dnsPolicy",
        r#"["Default","ClusterFirst"]"#,
        r#"["Other","None"]"#,
    ),
    ("/spec/hostNetwork", "[true,false]", r#"["x"]"#),
    (
        "/spec/serviceAccountName",
        r#"["default",""]"#,
        r#"["missing","Not_Valid",7]"#,
    ),
    ("/spec/automountServiceAccountToken", "[true,false]", r#"["x"]"#),
    (
        "/spec/tolerations",
        r#"[[{"key":"a","operator":"Exists"}],[{"operator":"Exists"}],[{"key":"a","value":"b","effect":"NoExecute","tolerationSeconds":5}]]"#,
        r#"[[{"key":"","operator":"Equal"}],[{"key":"a","operator":"Is"}],[{"key":"a","operator":"Exists","value":"x"}],[{"key":"a","effect":"Never"}],[{"key":"a","tolerationSeconds":5}],[7]]"#,
    ),
    (
        "/spec/priorityClassName",
        r#"["",null]"#,
        r#"["missing","system-node-critical"]"#,
    ),
    ("/spec/priority", "[0,null]", "[7]"),
    (
        "/spec/preemptionPolicy",
        r#"["PreemptLowerPriority",null]"#,
        r#"["Never","Sometimes","",7]"#,
    ),
    ("/spec/schedulerName", r#"["other","default-scheduler"]"#, "[7]"),
    (
        "/spec/schedulingGates",
        r#"[[{"name":"example.com/gate"}],[]]"#,
        r#"[[{"name":""}],[{"name":"a b"}],[{"name":"g"},{"name":"g"}]]"#,
    ),
    (
        "/spec/affinity",
        r#"[{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"zone","operator":"In","values":["z1"]}]}]}}},null]"#,
        r#"[{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[]}}}]"#,
    ),
    (
        "/spec/securityContext",
        r#"[{"fsGroup":1000},{"runAsUser":1000,"runAsNonRoot":true},{"supplementalGroups":[1,2],"sysctls":[{"name":"kernel.shm_rmid_forced","value":"1"}]},{"sysctls":[{"name":"kernel.shm_rmid_forced","value":""}]},{}]"#,
        r#"[{"fsGroup":-1},{"runAsUser":"x"},{"fsGroupChangePolicy":"Other"},{"supplementalGroups":[1,-1]},{"sysctls":[{"name":"A","value":"1"},{"name":"","value":"1"}]},{"sysctls":[{"name":"kernel.sem","value":"1"},{"name":"kernel.sem","value":"1"}]},{"supplementalGroupsPolicy":"Other"},{"seccompProfile":{"type":""}}]"#,
    ),
    // affinity between pods and preferences
    (
        "/spec/affinity",
        r#"[{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1,"preference":{"matchExpressions":[{"key":"zone","operator":"Exists"}]}}]}},{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"zone","labelSelector":{"matchLabels":{"app":"x"}}}]}},{"podAntiAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":100,"podAffinityTerm":{"topologyKey":"zone","labelSelector":{"matchLabels":{"app":"x"}}}}]}}]"#,
        r#"[{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":0,"preference":{"matchExpressions":[{"key":"zone","operator":"Is"}]}}]}},{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"","labelSelector":{"matchLabels":{"app":"x"}}}]}},{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"zone","namespaces":["Not_Valid"],"labelSelector":{"matchExpressions":[{"key":"a","operator":"In"}]}}]}},{"podAntiAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":101,"podAffinityTerm":{"topologyKey":"a b","labelSelector":{"matchLabels":{"app":"x"}}}}]}}]"#,
    ),
    (
        "/spec/topologySpreadConstraints",
        r#"[[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchLabels":{"app":"x"}}}],[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchLabels":{"app":"x"}},"minDomains":2},{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"ScheduleAnyway","labelSelector":{"matchLabels":{"app":"x"}}}],[]]"#,
        r#"[[{"maxSkew":0,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchLabels":{"app":"x"}}}],[{"maxSkew":1,"topologyKey":"","whenUnsatisfiable":"Never","labelSelector":{"matchLabels":{"app":"x"}}}],[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchLabels":{"app":"x"}}},{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchLabels":{"app":"x"}}}],[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"ScheduleAnyway","labelSelector":{"matchLabels":{"app":"x"}},"minDomains":0}],[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchLabels":{"app":"x"}},"nodeTaintsPolicy":"Other"}],7]"#,
    ),
    // matchLabelKeys
    (
        "/spec/topologySpreadConstraints",
        r#"[[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchLabels":{"a":"x"}},"matchLabelKeys":["app","tier"]}]]"#,
        r#"[[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule","matchLabelKeys":["app"]}],[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule","labelSelector":{},"matchLabelKeys":["a b"]}],[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchExpressions":[{"key":"app","operator":"Exists"},{"key":"app","operator":"Exists"}]},"matchLabelKeys":["tier","app"]}]]"#,
    ),
    (
        "/spec/affinity",
        r#"[{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"zone","labelSelector":{},"matchLabelKeys":["app"],"mismatchLabelKeys":["tier"]}]},"podAntiAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1,"podAffinityTerm":{"topologyKey":"zone","labelSelector":{"matchExpressions":[{"key":"app","operator":"Exists"}]},"mismatchLabelKeys":["app"]}}]}}]"#,
        r#"[{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"zone","matchLabelKeys":["app"],"mismatchLabelKeys":["app"]}]}},{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"zone","labelSelector":{"matchLabels":{"app":"x"}},"matchLabelKeys":["app","app"],"mismatchLabelKeys":["-","app"]}]}}]"#,
    ),
    (
        "/spec/dnsConfig",
        r#"[{"nameservers":["10.0.0.1"],"searches":["a_b.c"],"options":[{"name":"ndots","value":"2"}]},null]"#,
        r#"[{"nameservers":["x"]},{"nameservers":["10.0.0.1","10.0.0.2","10.0.0.3","10.0.0.04"]},{"searches":["A"]},{"options":[{}]}]"#,
    ),
    (
        "/spec/hostAliases",
        r#"[[{"ip":"10.0.0.1","hostnames":["a"]}],[]]"#,
        r#"[[{"ip":"x"}],[{"ip":"10.0.0.1","hostnames":["Not_Valid"]}],[{"ip":"::ffff:10.0.0.1"}]]"#,
    ),
    (
        "/spec/readinessGates",
        r#"[[]]"#,
        r#"[[{"conditionType":"a b"}],[{}]]"#,
    ),
    ("/spec/hostPID", r#"[true,false]"#, r#"["x"]"#),
    ("/spec/hostIPC", "[false]", r#"[true,"x"]"#),
    ("/spec/hostUsers", "[true,null]", r#"[false,"x"]"#),
    (
        "/spec/os",
        r#"[{"name":"linux"},null]"#,
        r#"[{"name":"windows"},{"name":""},{"name":"plan9"},{},"linux"]"#,
    ),
    (
        "/spec/securityContext",
        r#"[{"seLinuxChangePolicy":"Recursive"}]"#,
        r#"[{"seLinuxChangePolicy":"MountOption"},{"seLinuxChangePolicy":""}]"#,
    ),
    // appArmorProfile
    (
        "/spec/securityContext",
        r#"[{"appArmorProfile":{"type":"RuntimeDefault"}},{"appArmorProfile":{"type":"Localhost","localhostProfile":"p"}}]"#,
        r#"[{"appArmorProfile":{}},{"appArmorProfile":{"type":"Other"}},{"appArmorProfile":{"type":"Localhost"}},{"appArmorProfile":{"type":"Localhost","localhostProfile":" p"}},{"appArmorProfile":{"type":"Unconfined","localhostProfile":"p"}}]"#,
    ),
    (
        "/metadata/annotations",
        r#"[{"container.apparmor.security.beta.kubernetes.io/c":"runtime/default"},{"container.apparmor.security.beta.kubernetes.io/c":"localhost/p"}]"#,
        r#"[{"container.apparmor.security.beta.kubernetes.io/missing":"unconfined"},{"container.apparmor.security.beta.kubernetes.io/c":"other"},{"container.apparmor.security.beta.kubernetes.io/c":"localhost/"},{"container.apparmor.security.beta.kubernetes.io/c":"localhost/ p"}]"#,
    ),
    // windowsOptions
    (
        "/spec/securityContext",
        r#"[{"windowsOptions":{"gmsaCredentialSpecName":"a.b","gmsaCredentialSpec":"x","runAsUserName":"d\\u"}},{"windowsOptions":{"hostProcess":false}}]"#,
        r#"[{"windowsOptions":{"hostProcess":true}},{"windowsOptions":{"gmsaCredentialSpecName":"Not_Valid","gmsaCredentialSpec":""}},{"windowsOptions":{"runAsUserName":""}},{"windowsOptions":{"runAsUserName":"a\\b\\c"}},{"windowsOptions":{"runAsUserName":"\\"}},{"windowsOptions":{"runAsUserName":"a-.*b\\. ."}},{"windowsOptions":{"runAsUserName":"a\tb"}},{"windowsOptions":{"runAsUserName":".net\\u@v"}}]"#,
    ),
    ("/spec/shareProcessNamespace", r#"[false,null]"#, r#"[true,"x"]"#),
    ("/spec/hostname", r#"["h"]"#, r#"["Not_Valid"]"#),
    ("/spec/setHostnameAsFQDN", "[false,null]", r#"[true,"x"]"#),
    (
        "/spec/hostnameOverride",
        r#"["h.example.com",null]"#,
        r#"["Not_Valid","","xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"]"#,
    ),
    ("/spec/runtimeClassName", "[null]", r#"["missing","Not_Valid",7]"#),
    (
        "/spec/overhead",
        "[null]",
        r#"[{"cpu":"1"},{"cpu":"x"},{"cpu":"-1"},{"disk":"1"},{"hugepages-2Mi":"2Mi"}]"#,
    ),
    (
        "/spec/resources",
        r#"[{"requests":{"cpu":"1","memory":"2Gi"}},{"limits":{"cpu":"2"}},{"limits":{"cpu":"2","memory":"4Gi"}},{},null]"#,
        r#"[{"requests":{"storage":"1"}},{"requests":{"disk":"1"}},{"claims":[{"name":"r"}]},{"requests":{"cpu":"2"},"limits":{"cpu":"1"}},{"limits":{"memory":"1"}},{"requests":{"cpu":"50m"}},{"limits":{"hugepages-2Mi":"2Mi"}},7]"#,
    ),
    (
        "/status/phase",
        r#"["Running","Succeeded","Failed","Pending"]"#,
        r#"[7,[]]"#,
    ),
    (
        "/status/conditions",
        r#"[[{"type":"Ready","status":"True"}],[{"type":"PodScheduled","status":"False","reason":"Unschedulable","message":"m"},{"type":"Ready","status":"False","lastTransitionTime":"2020-01-01T00:00:00Z"}],[]]"#,
        r#"[[{"type":7}],{}]"#,
    ),
    ("/status/podIP", r#"["10.0.0.1",""]"#, r#"["x",7]"#),
    (
        "/status/podIPs",
        r#"[[{"ip":"10.0.0.1"}],[]]"#,
        r#"[[{"ip":"x"}],[{"ip":"10.0.0.1"},{"ip":"10.0.0.1"}]]"#,
    ),
    ("/status/hostIP", r#"["10.0.0.9",""]"#, r#"["x",7]"#),
    ("/status/message", r#"["text"]"#, "[7]"),
    ("/status/reason", r#"["Evicted"]"#, "[{}]"),
    (
        "/status/startTime",
        r#"["2020-01-01T00:00:00Z",null]"#,
        r#"["now"]"#,
    ),
    (
        "/status/containerStatuses",
        r#"[[{"name":"c","ready":true,"restartCount":0,"image":"i","imageID":"x","state":{"running":{"startedAt":"2020-01-01T00:00:00Z"}}}],[{"name":"c","ready":false,"restartCount":2,"image":"i","imageID":"","state":{"terminated":{"exitCode":1}}}],[{"name":"c","ready":true,"restartCount":0,"image":"i","imageID":"x","user":{"linux":{"uid":0,"gid":0}}}],[]]"#,
        r#"[[{"name":7}],{}]"#,
    ),
    ("/status/nominatedNodeName", r#"["a",""]"#, r#"["Not_Valid",7]"#),
];

pub(super) fn kinds() -> Vec<Kind> {
    let base = json!({ "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    vec![Kind {
        namespaced: true,
        selectable: &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        ..kind("", "Pod", "pods", base, ROWS)
    }]
}
